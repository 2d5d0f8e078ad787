// Operate: how the service does right now, and which bundle it serves.

import { call, givenUp, Newest, path } from "./api.js";
import { lines } from "./charts.js";
import { busy, confirmed, emptyPanel, problemPanel, ready } from "./dialogs.js";
import { announce, data, figure, fill, h, plain, table } from "./dom.js";
import { bytes, clock, count, fixed, long, ms, percent, time, whole } from "./format.js";
import { reportLink } from "./reports.js";

const EVERY = 2000;
const WATCHED = 150; // answers that are remembered, five minutes
const PLOTTED = 5;
const number = (name) => ({ name, kind: "number" });

/** Build the view. */
export function mount(main, app) {
  const newest = new Newest();
  const asking = new Newest();
  let paused = false;
  let timer = 0;
  let ended = false;
  let failures = 0;
  const watched = [];
  const state = h("div", { id: "status", class: "cards" });
  const trouble = h("div", {});
  const live = h("div", { id: "live", class: "plots" });
  const stages = h("div", { id: "stages" });
  const errors = h("div", { id: "errors" });
  const bundles = h("div", { id: "bundles" });
  const told = h("div", { id: "outcome", role: "status" });
  const pause = h("button", { type: "button", class: "small", id: "pause", "aria-pressed": "false", onclick: () => { paused = !paused; pause.setAttribute("aria-pressed", String(paused)); pause.textContent = paused ? "Go on" : "Pause"; if (!paused) poll(); } }, "Pause");
  fill(main, h("h1", { tabindex: "-1" }, "Operate"), trouble, state,
    h("section", { class: "card", "aria-labelledby": "bundles-title" }, h("h2", { id: "bundles-title" }, "Bundles"), told, bundles),
    h("section", { class: "card", "aria-labelledby": "live-title" }, h("div", { class: "title" }, h("h2", { id: "live-title" }, "Last two minutes"), pause), live),
    h("section", { class: "card", "aria-labelledby": "stages-title" }, h("h2", { id: "stages-title" }, "Stages, last minute"), stages),
    h("section", { class: "card", "aria-labelledby": "errors-title" }, h("h2", { id: "errors-title" }, "Last refused or failed requests"), errors));

  async function poll() {
    clearTimeout(timer);
    if (ended || paused) return;
    try {
      if (!document.hidden) {
        draw(await call("GET", "/v1/status", { signal: newest.begin() }));
        if (failures) fill(trouble);
        failures = 0;
      }
    } catch (error) {
      if (givenUp(error) || ended) return;
      failures += 1;
      fill(trouble, problemPanel(error));
    }
    if (!ended) timer = setTimeout(poll, EVERY * Math.min(8, 1 + failures));
  }

  /** Redraw without closing what somebody opened, and without losing the focus. */
  function redraw(box, ...children) {
    const able = () => [...box.querySelectorAll("summary, a, button, [tabindex]")];
    const focused = able().indexOf(document.activeElement);
    const open = [...box.querySelectorAll("details")].map((one) => one.open);
    const scrolled = [...box.querySelectorAll(".wide")].map((one) => [one.scrollLeft, one.scrollTop]);
    fill(box, ...children);
    [...box.querySelectorAll("details")].forEach((one, n) => { one.open = open[n] ?? false; });
    [...box.querySelectorAll(".wide")].forEach((one, n) => { [one.scrollLeft, one.scrollTop] = scrolled[n] ?? [0, 0]; });
    if (focused >= 0) able()[focused]?.focus({ preventScroll: true });
  }

  function draw(status) {
    const { queue, states, requests } = status;
    const worst = Object.values(status.degraded ?? {}).reduce((sum, one) => sum + one, 0);
    redraw(state,
      fact(status.status === "ok" ? "✓ ready" : `! ${status.status}`, status.reasons.length ? status.reasons.map((one) => plain(one, 80)).join("; ") : "takes requests", `up ${long(status.uptime_seconds)}, process ${status.pid}${status.processes > 1 ? ` of ${status.processes}` : ""}`),
      fact(fixed(requests.per_second, 1), "requests a second", `${whole(requests.in_flight)} under way`),
      fact(ms(status.stages.total?.p95 ?? NaN), "95th percentile", `median ${ms(status.stages.total?.p50 ?? NaN)}`),
      fact(whole(queue.waiting), "wait", `${whole(queue.running)} of ${whole(queue.slots)} slots busy; ${whole(queue.refused)} refused`),
      fact(states.hit_rate === null ? "–" : percent(states.hit_rate, 0), "states found in the cache", `${count(states.users, "user")}, ${bytes(states.bytes)} of ${bytes(states.limit_bytes)}`),
      fact(whole(worst), "degraded answers", worst ? Object.entries(status.degraded).map(([reason, times]) => `${plain(reason, 30)} ${whole(times)}`).join(", ") : "every answer was whole"));
    const at = status.series.map((one) => Date.parse(one.time));
    const points = (key) => status.series.map((one, n) => [at[n], one[key] ?? null]);
    const rows = (...keys) => status.series.filter((one) => one.requests || one.waiting).map((one) => [clock(one.time), ...keys.map((key) => (one[key] === null ? "–" : key.startsWith("p") ? ms(one[key]) : whole(one[key])))]).reverse();
    const plot = (title, label, series, y, heads, keys, note) => figure(title, lines(series, { label, x: "UTC", y, xText: clock, xStep: 30000, height: 170 }), ["time", ...heads.map(number)], rows(...keys), note);
    redraw(live,
      plot("Latency", "Latency by second", [{ name: "median", points: points("p50") }, { name: "95th percentile", points: points("p95") }], "ms", ["median", "95th percentile"], ["p50", "p95"]),
      plot("Requests", "Requests and failures by second", [{ name: "requests", points: points("requests") }, { name: "failed", points: points("failed") }], "a second", ["requests", "failed"], ["requests", "failed"]),
      plot("Queue", "Waiting requests by second", [{ name: "waiting", points: points("waiting") }], "waiting", ["waiting"], ["waiting"], `limit ${whole(queue.limit)}`));
    watched.push({ at: Date.parse(status.time), stages: status.stages });
    if (watched.length > WATCHED) watched.shift();
    drawStages(status);
    redraw(errors, status.errors.length === 0 ? emptyPanel("None.", "Requests that are refused or fail since the start appear here, without whom they were about.")
      : table(["time (UTC)", number("status"), "what", "operation", "request id"], status.errors.slice(0, 50).map((one) => [time(one.time), whole(one.status), plain(one.title, 60), `${one.method} ${plain(one.route ?? "unknown path", 60)}`, h("code", {}, plain(one.request_id, 40))]), { caption: "Last errors, newest first" }));
  }

  function drawStages(status) {
    const known = Object.entries(status.stages).sort((a, b) => (a[0] === "total") - (b[0] === "total") || b[1].p95 - a[1].p95);
    const most = Math.max(1e-9, ...known.map(([, one]) => one.p99));
    const busiest = known.filter(([name]) => name !== "total").slice(0, PLOTTED).map(([name]) => name);
    const seen = (name) => watched.map((one) => [one.at, one.stages[name]?.p50 ?? null]);
    const plot = figure("Median by stage", lines(busiest.map((name) => ({ name, points: seen(name) })), { label: "Median by stage since this page was opened", x: "UTC", y: "ms", xText: clock, xStep: 30000, height: 190 }),
      ["time", ...busiest.map(number)], [...watched].reverse().map((one) => [clock(one.at), ...busiest.map((name) => ms(one.stages[name]?.p50 ?? NaN))]), "since this page was opened, each over the minute before; the largest five");
    redraw(stages, known.length === 0 ? emptyPanel("No requests in the last minute.", "Open Try and rank for somebody, or send traffic; stages appear here.")
      : table(["stage", number("requests"), number("median"), number("95 %"), number("99 %"), number("largest"), "median to 99 %"], known.map(([name, one]) => [name === "total" ? h("b", {}, "all of it") : name, whole(one.count), ms(one.p50), ms(one.p95), ms(one.p99), ms(one.max),
        h("span", { class: "range", "aria-hidden": "true", vars: { "--from": String(one.p50 / most), "--to": String(one.p99 / most) } })]), { caption: "Stages in milliseconds" }), known.length === 0 ? null : plot);
  }

  async function listBundles() {
    if (!app.may("admin")) {
      ready(bundles, emptyPanel("Bundles are hidden.", "Listing and exchanging them needs a key with the scope admin."));
      return;
    }
    busy(bundles, "Looking at the bundles…");
    try {
      drawBundles(await call("GET", "/v1/bundles", { signal: asking.begin() }));
    } catch (error) {
      if (!givenUp(error)) ready(bundles, problemPanel(error, listBundles));
    }
  }

  function drawBundles(found) {
    const act = (one, name, text, perform) => h("button", { type: "button", class: "small", "data-act": name, "data-bundle": one.id, "aria-label": `${text} ${one.id}`, onclick: perform }, text);
    const rows = [...found.bundles].reverse().map((one) => [[h("code", {}, one.id), one.state ? h("span", { class: `tag ${one.state === "active" ? "good" : one.state === "broken" ? "warn" : ""}` }, one.state) : null],
      data(one.model || plain(one.note, 80), 80), whole(one.items), whole(one.users), `${long(one.age_seconds)}`, bytes(one.bytes),
      h("span", { class: "acts" }, one.state === "broken" ? null : reportLink(one), act(one, "verify", "Verify", () => verify(one)),
        one.state === "active" || one.state === "broken" ? null : [act(one, "diff", "Diff", () => diff(one, found)), act(one, "activate", "Activate…", () => activate(one, found))])]);
    ready(bundles, table(["bundle", "ranker", number("items"), number("users"), number("age"), number("size"), { name: "", kind: "acts" }], rows, { caption: "Bundles, newest first", style: "bundles" }),
      found.previous ? h("p", {}, h("button", { type: "button", id: "roll-back", onclick: () => rollBack(found) }, "Roll back…"), h("span", { class: "faint" }, " to ", h("code", {}, found.previous), ", which was active before.")) : h("p", { class: "faint" }, "Nothing to roll back to: no other bundle was active since this store was opened."));
  }

  async function perform(text, work) {
    fill(told, h("p", { class: "waiting" }, text));
    try {
      fill(told, h("div", { class: "note good" }, await work()));
    } catch (error) {
      fill(told, problemPanel(error));
    }
    await listBundles();
    await app.refresh().catch(() => undefined);
    announce(told.textContent);
  }

  const verify = (one) => perform(`Verifying ${one.id}…`, async () => {
    const done = await call("POST", path`/v1/bundles/${one.id}/verify`);
    return `${done.id}: all ${count(done.files, "file")} (${bytes(done.bytes)}) are as they were exported; took ${ms(done.took_ms)}.`;
  });

  const diff = (one, found) => perform(`Comparing ${one.id}…`, async () => {
    const made = await call("GET", "/v1/bundles/diff", { query: { new: one.id, old: found.current } });
    const facts = Object.entries(made.facts).map(([name, [before, after]]) => [plain(name, 40), plain(JSON.stringify(before), 60), plain(JSON.stringify(after), 60)]);
    return [h("p", {}, h("strong", {}, "From the active bundle to "), h("code", {}, made.new), `: ${whole(made.items_added)} items added, ${whole(made.items_removed)} removed, ${whole(made.items_changed)} changed; ${whole(made.users_added)} users added, ${whole(made.users_removed)} removed.`),
      h("p", {}, Object.entries(made.rankings).map(([name, value]) => `${plain(name.replaceAll("_", " "), 40)} ${fixed(value, 3)}`).join(", ")),
      facts.length ? table(["fact", "active", "the other"], facts, { caption: "Facts that differ" }) : null];
  });

  async function activate(one, found) {
    const lines = [h("span", {}, "It is verified and warmed up beside the one that serves, then answers everybody (users in arms of an experiment excepted). Requests under way end with the bundle they began with."), h("span", {}, "From ", h("code", {}, found.current), " to ", h("code", {}, one.id), ".")];
    if (await confirmed({ title: "Activate this bundle?", lines, action: "Activate", scope: "admin" })) await exchange(path`/v1/bundles/${one.id}/activate`, found, `Activating ${one.id}…`);
  }

  async function rollBack(found) {
    const lines = [h("span", {}, "The bundle that was active before answers again: at once if it is still open, or when it is verified and warmed up."), h("span", {}, "From ", h("code", {}, found.current), " to ", h("code", {}, found.previous), ".")];
    if (await confirmed({ title: "Roll back?", lines, action: "Roll back", scope: "admin" })) await exchange("/v1/bundles/rollback", found, "Rolling back…");
  }

  const exchange = (address, found, text) => perform(text, async () => {
    const done = await call("POST", address, { body: { expected_current: found.current } });
    return h("span", {}, "Active now: ", h("code", { id: "active-now" }, done.current), `, after ${ms(done.took_ms)}; nobody waited longer than ${ms(done.flip_ms)} for it.`);
  });

  return { update: () => { listBundles(); poll(); }, unmount: () => { ended = true; clearTimeout(timer); newest.end(); asking.end(); } };
}

const fact = (value, name, note) => h("div", { class: "fact" }, h("span", { class: "big" }, value), h("span", {}, name), h("small", { class: "faint" }, note));
