// Why: what each link added to a candidate's logit, for one candidate or for two side by side.

import { go, link, shared } from "./address.js";
import { call, givenUp, Newest } from "./api.js";
import { busy, emptyPanel, problemPanel, ready } from "./dialogs.js";
import { announce, fill, h, plain, table } from "./dom.js";
import { candidatePanel, linkPanel, standsFor } from "./explained.js";
import { itemField, userField } from "./finding.js";
import { count, probability, signed, whole } from "./format.js";
import { bodyOf, namesSomebody, PATIENTLY, stepsOf, stepText } from "./request.js";

const LINKS = 8;
const ALL_OF_IT = 50000; // a larger catalog is retrieved from, not ranked whole

/** Build the view; `update` follows the address. */
export function mount(main, app) {
  const served = app.info.served;
  let params = {};
  const newest = new Newest();
  const changed = (more) => go("why", { ...params, ...more });
  const user = userField(app, (id) => changed({ user: id, anonymous: "", steps: "" }));
  const first = itemField("Candidate", (id) => changed({ item: id }));
  const second = itemField("Beside it (optional)", (id) => changed({ beside: id }));
  const about = h("p", { class: "about" });
  const answer = h("div", { id: "explanation" });
  const suggestions = h("div", {});
  fill(main, h("h1", { tabindex: "-1" }, "Why is it there?"),
    h("section", { class: "card asking", "aria-label": "Whom and what to explain" }, h("div", { class: "fields" }, user.element, first.element, second.element), suggestions, about), answer);

  async function update(given) {
    params = given;
    user.set(params.anonymous ? "" : params.user);
    first.set(params.item);
    second.set(params.beside);
    const steps = stepsOf(params);
    fill(about, params.anonymous ? "For an anonymous visitor. " : "", steps.length ? `With ${count(steps.length, "change")}: ${steps.map(stepText).join("; ")}. ` : "",
      namesSomebody(params) ? h("a", { href: link("try", shared(params)) }, "Their ranking") : null);
    if (served.links === 0) return ready(answer, emptyPanel(`${served.model} has no links.`, "Only LIME rankers (lime-mha, lime-xor, lime-hstu, isab) send everything through links that can be read. The other views work with any ranker."));
    if (!namesSomebody(params)) return ready(answer, emptyPanel("Choose a user and a candidate.", "Or open Try, rank, and follow “Why” beside an item.", served.example_user ? h("p", {}, h("a", { class: "button", href: link("why", { user: served.example_user }) }, "Begin with ", h("bdi", {}, plain(served.example_user, 30)))) : ""));
    if (!params.item) return suggest(steps);
    fill(suggestions);
    busy(answer, "Asking why…");
    const items = [params.item, ...(params.beside && params.beside !== params.item ? [params.beside] : [])];
    try {
      const explained = await call("POST", "/v1/explain", { body: { ...bodyOf(params, steps), item_ids: items, top_events: 5 }, signal: newest.begin() });
      draw(explained);
    } catch (error) {
      if (!givenUp(error)) ready(answer, problemPanel(error, () => update(params)));
    }
    return undefined;
  }

  /** The best of the ranking, to choose from. */
  async function suggest(steps) {
    busy(answer, "Ranking…");
    try {
      const ranked = await call("POST", served.items > ALL_OF_IT ? "/v1/recommend" : "/v1/rank", { body: { ...bodyOf(params, steps), limit: 8, options: PATIENTLY }, signal: newest.begin() });
      ready(answer, h("section", { class: "card" }, h("h2", {}, "Which candidate?"), h("p", {}, "The best of this user’s ranking; or search for another one above."),
        h("ol", { class: "choices" }, ranked.items.map((one) => h("li", {}, h("a", { href: link("why", { ...params, item: one.id }) }, h("bdi", { dir: "auto" }, plain(one.display ?? one.id, 60))), " ", h("span", { class: "faint" }, probability(one.score)))))));
    } catch (error) {
      if (!givenUp(error)) ready(answer, problemPanel(error, () => update(params)));
    }
  }

  function draw(explained) {
    const [one, other] = explained.candidates;
    const only = other ? apart(one, other).slice(0, LINKS).map((row) => row.link) : one.links.slice(0, LINKS).map((part) => part.link);
    const remove = (which) => h("a", { class: "button small quiet", href: link("why", which === 0 ? { ...params, item: params.beside, beside: "" } : { ...params, beside: "" }) }, "Remove");
    let panels = explained.candidates.map((candidate, n) => candidatePanel(candidate, explained, { only, closable: other ? remove(n) : null }));
    if (other) {
      const range = [Math.min(...panels.map((panel) => panel.extent[0])), Math.max(...panels.map((panel) => panel.extent[1]))];
      panels = explained.candidates.map((candidate, n) => candidatePanel(candidate, explained, { only, range, closable: remove(n) }));
    }
    const added = (number) => explained.candidates.map((candidate) => candidate.links.find((part) => part.link === number).contribution);
    ready(answer, h("p", { class: "faint" }, `Task ${plain(explained.task, 40)}; the links read ${count(explained.history_used, "event")}; bundle `, h("code", {}, explained.bundle), "."),
      h("div", { class: other ? "two even" : "" }, panels.map((panel) => panel.element)),
      other ? difference(one, other, explained) : null,
      h("section", { class: "card", "aria-labelledby": "links-title" }, h("h2", { id: "links-title" }, "The links behind it"),
        h("p", { class: "faint" }, other ? "Those that set the two apart most. " : "Those that added most, of either sign. ", "A contribution is exact; the events are what a link read, which is a hint where a ranker reads in several layers."),
        only.map((number, n) => linkPanel(explained.links[number], { open: n === 0, added: added(number), bundle: params.bundle }))));
    announce(`Explained: ${explained.candidates.map((candidate) => `${plain(candidate.display ?? candidate.id, 40)} has logit ${signed(candidate.logit)}`).join(", ")}`);
  }

  return { update, unmount: () => newest.end() };
}

/** Links by how much they set two candidates apart. */
export function apart(one, other) {
  const there = new Map(other.links.map((part) => [part.link, part.contribution]));
  return one.links.map((part) => ({ link: part.link, one: part.contribution, other: there.get(part.link), difference: part.contribution - there.get(part.link) })).sort((a, b) => Math.abs(b.difference) - Math.abs(a.difference));
}

function difference(one, other, explained) {
  const name = (candidate) => plain(candidate.display ?? candidate.id, 28);
  const links = apart(one, other);
  const number = (text) => ({ name: text, kind: "number" });
  const rows = links.slice(0, LINKS).map((row) => [[h("b", {}, `Link ${row.link}`), " ", standsFor(explained.links[row.link])], signed(row.one), signed(row.other), signed(row.difference)]);
  const rest = links.slice(LINKS);
  const sum = (key) => rest.reduce((total, row) => total + row[key], 0);
  if (rest.length) rows.push([`${whole(rest.length)} other links`, signed(sum("one")), signed(sum("other")), signed(sum("difference"))]);
  for (const [key, text] of [["from_item", "The items themselves"], ["from_user", "User and context"], ["constant", "Constant"]]) rows.push([text, signed(one[key]), signed(other[key]), signed(one[key] - other[key])]);
  rows.push([h("b", {}, "Logit"), signed(one.logit), signed(other.logit), signed(one.logit - other.logit)]);
  return h("section", { class: "card", "aria-labelledby": "apart-title" }, h("h2", { id: "apart-title" }, "What sets them apart"), table(["term", number(name(one)), number(name(other)), number("difference")], rows, { caption: "Terms of both logits, and their difference" }));
}
