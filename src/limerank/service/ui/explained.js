// A candidate's logit as a sum of links; what each link read and stands for.

import { link as address } from "./address.js";
import { bars, waterfall } from "./charts.js";
import { data, h, item, plain, short, table } from "./dom.js";
import { fixed, percent, probability, signed, time, whole } from "./format.js";

const SHOWN = 8;
const CLOSE = 1e-4;

/** What a link stands for, in a few words. */
export function standsFor(profile, most = 28) {
  const first = profile?.attributes?.[0];
  return first ? short(`${plain(first.feature, 16)}=${plain(first.value, most)} ×${fixed(first.lift, 1)}`, most + 24) : h("span", { class: "faint" }, "no single attribute");
}

/** The rows of a waterfall, the largest links first, and the sum of all of it. */
export function termsOf(candidate, links, only) {
  const chosen = only ?? candidate.links.slice(0, SHOWN).map((one) => one.link);
  const value = new Map(candidate.links.map((one) => [one.link, one.contribution]));
  const rows = chosen.map((number) => ({ key: `link-${number}`, name: [h("b", {}, `Link ${number}`), " ", standsFor(links[number])], value: value.get(number), said: signed(value.get(number)) }));
  const others = candidate.links.filter((one) => !chosen.includes(one.link));
  if (others.length) {
    const sum = others.reduce((total, one) => total + one.contribution, 0);
    rows.push({ key: "other-links", name: `${whole(others.length)} other links`, value: sum, said: signed(sum) });
  }
  for (const [key, name] of [["from_item", "The item itself"], ["from_user", "User and context"], ["constant", "Constant"]]) rows.push({ key, name, value: candidate[key], said: signed(candidate[key]) });
  return rows;
}

/** Whether the terms add up to the logit, and the logit to the score; in words and for tests. */
export function check(candidate) {
  const sum = candidate.links.reduce((total, one) => total + one.contribution, 0) + candidate.from_item + candidate.from_user + candidate.constant;
  const score = 1 / (1 + Math.exp(-sum));
  const given = candidate.score ?? 1 / (1 + Math.exp(-candidate.logit));
  const matches = Math.abs(sum - candidate.logit) < CLOSE * Math.max(1, Math.abs(candidate.logit)) && Math.abs(score - given) < CLOSE;
  return { sum, score, given, matches };
}

/** One candidate: its score, its waterfall, and the proof of the sum. */
export function candidatePanel(candidate, explained, { only, range, closable } = {}) {
  const proof = check(candidate);
  const rows = termsOf(candidate, explained.links, only);
  const drawn = waterfall([...rows, { key: "logit", name: h("b", {}, "Logit"), value: proof.sum, said: signed(proof.sum), total: true }], { label: "What adds up to the logit", range });
  const numbers = [...candidate.links.map((one) => [`link ${one.link}`, signed(one.contribution, 5), fixed(one.weight, 4)]), ["item", signed(candidate.from_item, 5), ""], ["user and context", signed(candidate.from_user, 5), ""], ["constant", signed(candidate.constant, 5), ""], ["sum", signed(proof.sum, 5), ""]];
  return { extent: drawn.extent, element: h("section", { class: "card candidate", "data-candidate": String(candidate.id) },
    h("h2", {}, item(candidate.id, candidate.display), closable ?? null),
    h("p", { class: "score" }, h("span", { class: "big" }, probability(proof.given)), ` probability of ${plain(explained.task, 40)}`),
    h("figure", {}, drawn.element,
      h("p", { class: `proof ${proof.matches ? "good" : "bad"}`, "data-matches": String(proof.matches), "data-sum": String(proof.sum), "data-score": String(proof.given) },
        proof.matches ? "✓ " : "✗ ", `The terms add up to ${signed(proof.sum, 4)}, which is a probability of ${probability(proof.score)}; the ranking says ${probability(proof.given)}${proof.matches ? "." : ": they do not match. Please report this."}`),
      h("details", { class: "behind" }, h("summary", {}, "The numbers"), table(["term", { name: "adds", kind: "number" }, { name: "weight", kind: "number" }], numbers, { caption: "All terms of the logit" })))) };
}

/** A link in this request: what it read of the history, and what it attracts in the catalog. */
export function linkPanel(profile, { open = false, added = [], bundle } = {}) {
  const events = profile.events ?? [];
  return h("details", { class: "link", open, "data-link": String(profile.link) },
    h("summary", {}, h("b", {}, `Link ${profile.link}`), " ", standsFor(profile), h("span", { class: "numbers" }, added.map((one) => h("span", { class: one < 0 ? "minus" : "plus" }, signed(one))))),
    h("div", { class: "two even" },
      h("div", {}, h("h3", {}, "Read of this history"), events.length === 0 ? h("p", { class: "faint" }, "Nothing: the history is empty, or was not read by this link.")
        : bars(events.map((event) => ({ name: [item(event.item, event.display, 32), h("small", { class: "faint" }, ` #${event.position}${event.time ? `, ${time(event.time)}` : ""}${featuresText(event.features)}`)], value: event.fraction, said: percent(event.fraction) })), { label: "Events by how much the link read of them", largest: 1 })),
      h("div", {}, h("h3", {}, "Attracts in the catalog"), attractions(profile), h("p", {}, h("a", { href: address("links", { link: profile.link, bundle }) }, `Link ${profile.link} on the map`)))));
}

const featuresText = (features) => { const known = Object.entries(features ?? {}); return known.length ? `: ${known.map(([name, value]) => `${plain(name, 16)} ${plain(value, 20)}`).join(", ")}` : ""; };

/** Attributes by lift, and the items on which the link lies most. */
export function attractions(profile, most = 5) {
  const attributes = profile.attributes ?? [];
  const items = profile.items ?? [];
  return h("div", { class: "attracts" },
    attributes.length ? h("ul", { class: "plain" }, attributes.slice(0, most).map((one) => h("li", {}, data(one.feature, 20), " = ", data(one.value, 40), " ", h("small", {}, `${fixed(one.lift, 1)} times as often as in the catalog, ${percent(one.fraction, 0)} of its weight`)))) : h("p", { class: "faint" }, "No attribute stands out."),
    items.length ? h("p", {}, "Most of all: ", items.slice(0, most).map((one, n) => [n ? ", " : "", item(one.id, one.display, 28)])) : null);
}
