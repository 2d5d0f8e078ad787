// From the address to a request: who is asked for, and the changes that were made, one after the other.
//
// A change is ["event", item, features], ["drop", item, time], ["context", name, value] or ["now", time].

import { parsed } from "./address.js";
import { plain } from "./dom.js";
import { time } from "./format.js";

const VISITOR = "visitor";

/** How the page asks: not as traffic, and patiently, for two answers of which each left out something else cannot be compared. */
export const PATIENTLY = { record: false, deadline_ms: 10000 };

/** The changes of an address, those that can be read. */
export function stepsOf(params) {
  const given = parsed(params.steps, []);
  const known = { event: 3, drop: 3, context: 3, now: 2 };
  return Array.isArray(given) ? given.filter((step) => Array.isArray(step) && known[step[0]] === step.length && typeof step[1] === "string").slice(0, 200) : [];
}

/** Whether an address names anybody. */
export const namesSomebody = (params) => Boolean(params.user || params.anonymous);

/** What rank, recommend and explain have in common: the user as stored, with the changes. */
export function bodyOf(params, steps) {
  const body = { user_id: params.anonymous ? VISITOR : params.user };
  if (params.anonymous) body.history = [];
  const of = (kind) => steps.filter((step) => step[0] === kind);
  const context = Object.fromEntries(of("context").map(([, name, value]) => [name, value]));
  if (Object.keys(context).length) body.context = context;
  const events = of("event").map(([, item, features]) => ({ item_id: item, features: features ?? {} }));
  if (events.length) body.events = events;
  const dropped = of("drop").map(([, item, at]) => (at ? { item_id: item, timestamp: at } : { item_id: item }));
  if (dropped.length && !params.anonymous) body.without = dropped;
  const clock = of("now").at(-1);
  if (clock) {
    body.now = clock[1];
    if (!params.anonymous) body.until = clock[1];
  }
  if (params.task) body.task = params.task;
  if (params.bundle) body.bundle = params.bundle;
  return body;
}

/** A change in a few words. */
export function stepText([kind, what, more]) {
  if (kind === "event") return `Event with ${plain(what, 30)}`;
  if (kind === "drop") return `Without ${plain(what, 30)}${more ? ` of ${time(more)}` : ""}`;
  if (kind === "context") return `${plain(what, 30)} = ${plain(Array.isArray(more) ? more.join(", ") : more, 30)}`;
  return `At ${time(what)} UTC`;
}

/** Add a change; one of the same thing replaces the one before. */
export function withStep(steps, step) {
  const [kind, what] = step;
  const same = (other) => other[0] === kind && (kind === "now" || (kind === "context" && other[1] === what));
  return [...steps.filter((other) => !same(other)), step];
}

/** Values of a form as the API wants them: numbers for continuous features, lists for many-valued ones. */
export function valueOf(feature, text) {
  if (feature.kind === "continuous") return Number(text);
  if (feature.kind === "multi_valued") return text.split(",").map((one) => one.trim()).filter(Boolean);
  if (feature.kind === "vector") return text.split(",").map(Number);
  return text;
}
