// A ranking as a table: where each item stands, where it stood, what it is likely to bring; and how the answer was made.

import { link } from "./address.js";
import { announce, data, h, item, plain, s, table } from "./dom.js";
import { count, ms, percent, probability, time, whole } from "./format.js";

export const SHOWN = 20;

/** Positions by id, from 1. */
export const positions = (answer) => new Map(answer.items.map((one, n) => [String(one.id), n + 1]));

/** Where an item went: a number with an arrow, and a sentence for those who do not see arrows. */
export function movement(before, after, depth) {
  if (before === undefined) return h("span", { class: "move in" }, h("span", { "aria-hidden": "true" }, "▲ new"), h("span", { class: "unseen" }, `came in; was not among the first ${whole(depth)}`));
  if (before === after) return h("span", { class: "move same" }, h("span", { "aria-hidden": "true" }, "="), h("span", { class: "unseen" }, "stayed"));
  const up = before > after;
  return h("span", { class: `move ${up ? "up" : "down"}` }, h("span", { "aria-hidden": "true" }, `${up ? "▲" : "▼"} ${whole(Math.abs(before - after))}`),
    h("span", { class: "unseen" }, `${up ? "up" : "down"} ${Math.abs(before - after)}, from ${before} to ${after}`));
}

function likely(value, largest) {
  return h("span", { class: "likely" }, h("span", { class: "number" }, probability(value)), h("span", { class: "meter", "aria-hidden": "true", vars: { "--part": String(largest ? value / largest : 0) } }));
}

/** The table; `before` is the answer to compare with, or null. */
export function rankingTable({ answer, before, tasks, task, shown, whyParams, onEvent }) {
  const stood = before ? positions(before) : null;
  const chosen = task || tasks[0];
  const order = [chosen, ...tasks.filter((one) => one !== chosen)];
  const score = (one, name) => one.scores?.[name] ?? (name === chosen ? one.score : NaN);
  const rows = answer.items.slice(0, shown);
  const largest = Object.fromEntries(order.map((name) => [name, Math.max(0, ...rows.map((one) => score(one, name)))]));
  const heads = [{ name: "#", kind: "number" }, { name: "item", kind: "name" },
    ...order.map((name, n) => ({ name: `P(${plain(name, 24)})${n === 0 && order.length > 1 ? " ↓" : ""}`, kind: "number" })), { name: "", kind: "acts" }];
  const cells = rows.map((one, n) => {
    const id = String(one.id);
    return [[h("span", { class: "position" }, whole(n + 1)), stood ? [" ", movement(stood.get(id), n + 1, before.items.length)] : null], item(one.id, one.display),
      ...order.map((name) => likely(score(one, name), largest[name])),
      h("span", { class: "acts" },
        h("button", { type: "button", class: "small", "data-event": id, "aria-label": `Event with ${plain(one.display ?? id, 40)}`, title: "Something happens with this item", onclick: () => onEvent(id, one.display, n + 1) }, "Click"),
        whyParams ? h("a", { class: "button small", href: link("why", { ...whyParams, item: id }), "aria-label": `Why is ${plain(one.display ?? id, 40)} here` }, "Why") : null)];
  });
  const made = table(heads, cells, { caption: `Ranking, ${whole(rows.length)} of ${whole(answer.items.length)} items`, style: "ranking" });
  [...made.querySelectorAll("tbody tr")].forEach((row, n) => { row.dataset.item = String(rows[n].id); row.dataset.score = String(rows[n].score); });
  return made;
}

const STAGES = ["queue", "parse", "history", "user", "retrieve", "lookup", "interact", "select", "encode"];

/** What each stage took, as one bar, with the numbers behind it. */
export function stageBar(timing) {
  const known = Object.entries(timing).filter(([name, took]) => name !== "total" && took > 0).sort((a, b) => STAGES.indexOf(a[0]) - STAGES.indexOf(b[0]));
  const sum = known.reduce((total, [, took]) => total + took, 0) || 1;
  let from = 0;
  const bar = s("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", class: "stages", role: "img", "aria-label": `Stages: ${known.map(([name, took]) => `${name} ${ms(took)}`).join(", ")}` },
    known.map(([name, took], n) => {
      const part = s("rect", { class: `line-${n % 6}`, x: from, y: 0, height: 6, width: Math.max(0.3, (took / sum) * 100 - 0.4) }, s("title", {}, `${name}: ${ms(took)}`));
      from += (took / sum) * 100;
      return part;
    }));
  const legend = h("ul", { class: "legend" }, known.map(([name, took], n) => h("li", {}, h("span", { class: `swatch line-${n % 6}`, "aria-hidden": "true" }), `${name} ${ms(took)}`)));
  return h("div", { class: "timing" }, h("p", {}, h("strong", {}, ms(timing.total ?? sum)), " in the service"), bar, legend,
    h("details", { class: "behind" }, h("summary", {}, "The numbers"), table(["stage", { name: "took", kind: "number" }, { name: "of all", kind: "number" }], known.map(([name, took]) => [name, ms(took), percent(took / sum)]), { caption: "Stages of this request" })));
}

async function copy(text, code) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied");
  } catch {
    getSelection().selectAllChildren(code); // not allowed, or not there without TLS
    announce("Selected; copy it with the keyboard");
  }
}

const STATES = { cached: "its state was kept", appended: "new events were added to its kept state", computed: "its state was computed", approximate: "its state is approximate" };

/** How an answer came about: bundle, arm, history, counts, what was left out. */
export function facts(answer) {
  const { user, counts } = answer;
  const rows = [
    ["bundle", h("code", {}, answer.bundle)],
    ["arm", data(answer.arm)],
    ["user", `${user.known ? "known" : "unknown: ranked with an empty history"}; ${STATES[user.state] ?? user.state}`],
    ["history read", `${count(user.history_used, "event")}${user.history_as_of ? `, newest ${time(user.history_as_of)}` : ""}${user.left_out ? `; ${count(user.left_out, "event")} left out` : ""}`],
    ["candidates", `${whole(counts.scored)} scored of ${whole(counts.requested)}${counts.excluded ? `, ${whole(counts.excluded)} excluded` : ""}${counts.unknown ? `, ${whole(counts.unknown)} unknown` : ""}${counts.overlay ? `, ${whole(counts.overlay)} from upserts` : ""}`],
    ["scored by", `the ${answer.path} path${answer.retrieved_by?.length ? `; found by ${answer.retrieved_by.join(", ")}` : ""}`],
    ["request id", h("code", {}, answer.request_id)],
  ];
  return h("dl", { class: "facts" }, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** What an answer had to leave out, so that nobody mistakes it for a whole one. */
export function degradedNote(answer) {
  return answer.degraded.length === 0 ? null : h("div", { class: "note", role: "status" }, h("strong", {}, "Not everything fit into the deadline: "), answer.degraded.map((line) => plain(line, 200)).join("; "), ".");
}

/** The same request for a terminal; never with the key. */
export function asCurl(path, body) {
  const address = new URL(path.replace(/^\//, ""), new URL(".", document.baseURI));
  const text = `curl -s ${address} -H 'Content-Type: application/json' \\\n  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
  const code = h("pre", { tabindex: "0" }, text.length > 4000 ? `${text.slice(0, 4000)}…` : text);
  return h("details", { class: "behind" }, h("summary", {}, "This request, for a terminal"), code,
    h("button", { type: "button", class: "small", onclick: () => copy(text, code) }, "Copy"));
}
