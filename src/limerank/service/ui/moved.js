// What moved most between two rankings, and which links moved it.

import { link } from "./address.js";
import { call, givenUp } from "./api.js";
import { fill, h, item, plain, short } from "./dom.js";
import { signed, whole } from "./format.js";
import { positions } from "./ranking.js";

const SHOWN = 4;
const LINKS = 3;

/** Items of either ranking by how far they moved: [{id, display, before, after}]; undefined where a list does not hold it. */
export function movers(before, after) {
  const then = positions(before);
  const now = positions(after);
  const deep = Math.min(before.items.length, after.items.length) + 1;
  const names = new Map([...before.items, ...after.items].map((one) => [String(one.id), one.display]));
  const moved = [...names].map(([id, display]) => ({ id, display, before: then.get(id), after: now.get(id) }))
    .filter((one) => one.before !== one.after);
  // who reaches the top matters more than who moves at the bottom: distances count on a scale of doublings
  const weight = (one) => Math.abs(Math.log2(one.before ?? deep) - Math.log2(one.after ?? deep));
  return moved.sort((a, b) => weight(b) - weight(a) || (a.after ?? deep) - (b.after ?? deep));
}

/** How alike the beginnings of two rankings are. */
export function overlap(before, after, k) {
  const first = new Set(before.items.slice(0, k).map((one) => String(one.id)));
  const others = after.items.slice(0, k).map((one) => String(one.id));
  const depth = Math.max(first.size, others.length);
  return depth ? others.filter((id) => first.has(id)).length / depth : 1;
}

/** The panel; `bodies` are the requests before and after, and `why` whether the ranker has links to ask. */
export function movedPanel({ before, after, against, bodies, why, whyParams, signal }) {
  const all = movers(before, after);
  const title = h("h2", {}, "What moved");
  if (!all.length) return h("section", { class: "card moved", "aria-label": "What moved" }, title, h("p", {}, `Nothing: the order is as it was ${against}.`));
  const most = all.slice(0, SHOWN);
  const slots = new Map(most.map((one) => [one.id, h("p", { class: "why faint" }, why ? "Asking why…" : "")]));
  const place = (n) => (n === undefined ? h("span", { class: "faint" }, `below ${whole(before.items.length)}`) : h("span", {}, `#${whole(n)}`));
  const panel = h("section", { class: "card moved", "aria-label": "What moved" }, title,
    h("p", {}, `Compared with the order ${against}: `, h("strong", {}, whole(all.filter((one) => one.after !== undefined).length)), ` of the first ${whole(after.items.length)} stand elsewhere; of the best 10, `, h("strong", {}, whole(Math.round(overlap(before, after, 10) * Math.min(10, after.items.length)))), " are the same."),
    h("ol", { class: "movers" }, most.map((one) => {
      const up = (one.after ?? Infinity) < (one.before ?? Infinity);
      return h("li", { "data-item": one.id },
        h("span", { class: `move ${up ? "up" : "down"}`, "aria-hidden": "true" }, up ? "▲" : "▼"),
        h("div", {}, h("div", { class: "line" }, item(one.id, one.display), h("span", { class: "steps" }, place(one.before), h("span", { "aria-label": "to" }, " → "), place(one.after))), slots.get(one.id) ?? null));
    })));
  if (why) explainMoves([...slots.keys()], bodies, slots, whyParams, signal);
  return panel;
}

/** Fetch the contributions before and after, and say which links changed most. */
async function explainMoves(ids, bodies, slots, whyParams, signal) {
  const ask = (body) => call("POST", "/v1/explain", { body: { ...body, item_ids: ids, top_events: 1 }, signal });
  try {
    const [before, after] = await Promise.all(bodies.map(ask));
    ids.forEach((id, n) => fill(slots.get(id), ...sentence(before.candidates[n], after.candidates[n], after.links), " ", h("a", { href: link("why", { ...whyParams, item: id }) }, "Why")));
  } catch (error) {
    if (!givenUp(error)) for (const slot of slots.values()) fill(slot, plain(error.message, 120));
  }
}

/** Changes of links, largest first: [{link, change}]. */
export function changes(before, after) {
  const then = new Map(before.links.map((one) => [one.link, one.contribution]));
  return after.links.map((one) => ({ link: one.link, change: one.contribution - (then.get(one.link) ?? 0) })).sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
}

function sentence(before, after, links) {
  const rest = after.from_item + after.from_user + after.constant - before.from_item - before.from_user - before.constant;
  const parts = changes(before, after).slice(0, LINKS).filter((one) => Math.abs(one.change) >= 0.0005);
  const told = parts.map((one, n) => {
    const known = links[one.link];
    const stands = known.attributes?.[0];
    const read = known.events?.[0];
    return [n ? "; " : "", `link ${one.link} `, h("b", {}, signed(one.change)),
      stands ? [" (", short(`${plain(stands.feature, 20)}=${plain(stands.value, 24)}`, 48), ")"] : null,
      n === 0 && read ? [", which reads ", short(read.display ?? read.item, 30)] : null];
  });
  return [`Logit ${signed(after.logit - before.logit)}: `, ...(told.length ? told : ["links hardly changed"]), Math.abs(rest) >= 0.0005 ? [`; item, user and context `, h("b", {}, signed(rest))] : null, "."];
}
