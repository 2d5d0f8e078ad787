// A history as a timeline: one page of events at a time, however many there are.

import { call, givenUp, Newest, path } from "./api.js";
import { busy, emptyPanel, problemPanel, ready } from "./dialogs.js";
import { data, fill, h, item, plain, refill } from "./dom.js";
import { count, time, whole } from "./format.js";

const PAGE = 25;

/** Events that happened at the same time, together. */
function sessions(events) {
  const found = [];
  for (const event of events) {
    if (found.length && found.at(-1)[0].timestamp === event.timestamp && event.timestamp) found.at(-1).push(event);
    else if (found.length && !event.timestamp) found.at(-1).push(event);
    else found.push([event]);
  }
  return found;
}

/** A timeline of whoever `show` names; `turn` is told when another page is wanted, `drop` an event to leave out. */
export function timeline(app, { turn, drop }) {
  const body = h("div", { class: "timeline" });
  const summary = h("p", { class: "faint" });
  const pager = h("nav", { class: "pager", "aria-label": "Pages of the history" });
  const newest = new Newest();

  async function show(user, page, steps, before) {
    if (!app.may("admin")) {
      fill(summary);
      fill(pager);
      ready(body, emptyPanel("Histories are hidden.", "Reading what a user did needs a key with the scope admin. Rankings work without."));
      return;
    }
    busy(body, "Reading the history…");
    try {
      const answer = await call("GET", path`/v1/users/${user}`, { query: { limit: PAGE, offset: page * PAGE }, signal: newest.begin() });
      draw(answer, page, steps, before);
    } catch (error) {
      if (!givenUp(error)) ready(body, problemPanel(error, () => show(user, page, steps, before)));
    }
  }

  function draw(answer, page, steps, before) {
    const total = answer.total ?? answer.history.length;
    fill(summary, answer.erased_at ? `Erased at ${time(answer.erased_at)}. ` : "",
      `${count(total, "event")}: ${whole(answer.events_in_bundle)} from the bundle, ${whole(answer.events_stored)} stored since. `,
      answer.read === undefined || answer.read === total ? "" : `The ranker reads the newest ${whole(answer.read)}.`);
    const pages = Math.max(1, Math.ceil(total / PAGE));
    refill(pager, pages === 1 ? null : [
      h("button", { type: "button", class: "small", disabled: page === 0, onclick: () => turn(page - 1) }, "← Newer"),
      h("span", {}, `${whole(page * PAGE + 1)}–${whole(Math.min(total, (page + 1) * PAGE))} of ${whole(total)}`),
      h("button", { type: "button", class: "small", disabled: page >= pages - 1, onclick: () => turn(page + 1) }, "Older →"),
      page < pages - 1 ? h("button", { type: "button", class: "small", onclick: () => turn(pages - 1) }, "Oldest") : null]);
    if (!answer.history.length) {
      ready(body, answer.known
        ? emptyPanel("No events.", "This user is known but has no history. Click an item of the ranking to see what one event changes.")
        : emptyPanel("Nobody knows this user.", "They are ranked with an empty history, as a new visitor would be. Check the id, or click an item to see what one event changes."));
      return;
    }
    const dropped = new Set(steps.filter((step) => step[0] === "drop").map((step) => `${step[1]} ${step[2] ?? ""}`));
    ready(body, h("ol", { class: "sessions" }, sessions(answer.history).map((events) => h("li", {},
      h("time", { datetime: events[0].timestamp ?? null }, time(events[0].timestamp)), h("ul", { class: "events" }, events.map((event) => row(event, dropped, before)))))));
  }

  function row(event, dropped, before) {
    const out = dropped.has(`${event.item_id} ${event.timestamp ?? ""}`) || dropped.has(`${event.item_id} `);
    const later = before && event.timestamp && Date.parse(event.timestamp) >= Date.parse(before);
    const unread = event.read === false;
    const features = Object.entries(event.features ?? {});
    const why = out ? "left out" : unread ? `not read: ${plain(event.why ?? "", 60)}` : later ? "not yet happened" : "";
    return h("li", { class: why ? "out" : null },
      h("div", { class: "what" }, item(event.item_id, event.display), event.source === "events" ? h("span", { class: "tag" }, "stored") : null, event.type && event.type !== "event" ? h("span", { class: "tag" }, data(event.type, 24)) : null,
        features.length ? h("span", { class: "features" }, features.map(([name, value], n) => [n ? ", " : "", `${plain(name, 24)} `, data(Array.isArray(value) ? value.join(", ") : value, 40)])) : null),
      why ? h("span", { class: "tag warn" }, why)
        : h("button", { type: "button", class: "small quiet", "data-drop": event.item_id, title: "Rank as if this had not happened", "aria-label": `Leave out the event with ${plain(event.display ?? event.item_id, 40)} of ${time(event.timestamp)}`, onclick: () => drop(event.item_id, event.timestamp) }, "✕"));
  }

  function visitor() {
    newest.end();
    fill(summary, "Somebody of whom nothing is known.");
    fill(pager);
    ready(body, emptyPanel("An empty history.", "Click items of the ranking: each click is an event of this visitor, kept in the address and stored nowhere."));
  }

  return { element: h("div", {}, summary, body, pager), show, visitor, end: () => newest.end() };
}
