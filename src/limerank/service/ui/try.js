// Try: somebody, their history, their ranking; change something, and watch the order change.

import { go, shared } from "./address.js";
import { call, givenUp, Newest } from "./api.js";
import { busy, emptyPanel, problemPanel, ready } from "./dialogs.js";
import { announce, debounced, fill, fresh, h, plain, refill } from "./dom.js";
import { userField } from "./finding.js";
import { count, whole } from "./format.js";
import { askWhatHappens, featureField, setField } from "./happening.js";
import { movedPanel } from "./moved.js";
import { asCurl, degradedNote, facts, rankingTable, SHOWN, stageBar } from "./ranking.js";
import { bodyOf, namesSomebody, PATIENTLY, stepsOf, stepText, valueOf, withStep } from "./request.js";
import { timeline } from "./timeline.js";

const DEPTH = 1000;
const RECOMMENDED = 100;
const ALL_OF_IT = 50000;
const CLOCK_WAIT = 600; // milliseconds: each part of a typed date is a change

/** Build the view; `update` follows the address. */
export function mount(main, app) {
  const served = app.info.served;
  let params = {};
  let ended = false;
  let remembered = null; // the answer before a real event was stored, and to what question
  const question = () => JSON.stringify([params.user, params.mode, params.items, params.task, params.bundle]);
  const newest = new Newest();
  const changed = (more, options) => go("try", { ...params, older: "", shown: "", ...more }, options);
  const addStep = (step) => { remembered = null; changed({ steps: JSON.stringify(withStep(stepsOf(params), step)), older: params.older, shown: params.shown }); };

  const user = userField(app, (id) => { remembered = null; changed({ user: id, anonymous: "", steps: "" }); });
  const visitor = h("button", { type: "button", id: "visitor", onclick: () => { remembered = null; changed({ user: "", anonymous: "1", steps: "" }); } }, "Anonymous visitor");
  const mode = select("Candidates", [["catalog", "The whole catalog"], ["recommend", "Recommend: retrieve, without what was seen"], ["list", "These items…"]], (value) => changed({ mode: value }));
  const task = select("Ordered by", served.tasks.map((one) => [one, plain(one, 40)]), (value) => changed({ task: value === served.tasks[0] ? "" : value }));
  const bundle = select("Answered by", [["", "the user’s own bundle"]], (value) => changed({ bundle: value }));
  bundle.element.hidden = true;
  const listed = h("textarea", { id: fresh("items"), rows: "2", placeholder: "ids, separated by commas or lines", onchange: () => changed({ items: listed.value }) });
  const listedField = h("div", { class: "field", hidden: true }, h("label", { for: listed.id }, "Items to rank"), listed);
  const contextFields = (served.context ?? []).map((feature) => ({ feature, element: featureField(feature, undefined, changeContext) }));
  function changeContext(feature, text) {
    if (text !== "") addStep(["context", feature.name, valueOf(feature, text)]);
    else changed({ steps: JSON.stringify(stepsOf(params).filter((step) => step[0] !== "context" || step[1] !== feature.name)) });
  }
  const clockInput = h("input", { id: fresh("clock"), type: "datetime-local", step: "1", onchange: debounced(CLOCK_WAIT, () => moveClock()) });
  function moveClock() {
    const at = Date.parse(`${clockInput.value}Z`);
    if (at > 0 && !ended) addStep(["now", new Date(at).toISOString()]); // a year that is being typed begins long before 1970
  }
  const clockField = served.has_times ? h("div", { class: "field" }, h("label", { for: clockInput.id }, "Clock (UTC)"), clockInput) : null;
  const context = h("div", { class: "fields", id: "context" }, contextFields.map((one) => one.element), clockField);
  const contextCard = h("details", { class: "card settings", open: innerWidth > 700 }, h("summary", {}, h("h2", {}, "Context and clock")), context,
    (served.context ?? []).length === 0 && !clockField ? h("p", { class: "faint" }, "This log has neither context features nor times.") : null);
  const chips = h("div", { class: "chips", id: "changes" });
  const moved = h("div", { id: "moved" });
  const ranking = h("div", { id: "ranking" });
  const history = timeline(app, { turn: (page) => changed({ older: page || "", shown: params.shown }), drop: (item, at) => addStep(["drop", item, at ?? null]) });

  fill(main, h("h1", { tabindex: "-1" }, "Try a ranking"),
    h("section", { class: "card asking", "aria-label": "Who and what" }, h("div", { class: "fields" }, user.element, h("div", { class: "field end" }, visitor), mode.element, served.tasks.length > 1 ? task.element : null, bundle.element), listedField),
    chips, moved,
    h("div", { class: "two" }, h("section", { class: "card", "aria-labelledby": "ranking-title" }, h("h2", { id: "ranking-title" }, "Ranking"), ranking),
      h("div", { class: "side" }, contextCard, h("section", { class: "card", "aria-labelledby": "history-title" }, h("h2", { id: "history-title" }, "History"), history.element))));

  const modeOf = () => (["catalog", "recommend", "list"].includes(params.mode) ? params.mode : served.items > ALL_OF_IT ? "recommend" : "catalog");
  const itemsOf = () => String(params.items ?? "").split(/[\n,]+/).map((one) => one.trim()).filter(Boolean);

  function request(steps) {
    const body = { ...bodyOf(params, steps), options: PATIENTLY };
    if (modeOf() === "recommend") return ["/v1/recommend", { ...body, limit: RECOMMENDED }];
    return ["/v1/rank", modeOf() === "list" ? { ...body, item_ids: itemsOf() } : { ...body, limit: DEPTH }];
  }

  async function update(given) {
    params = given;
    const steps = stepsOf(params);
    drawControls(steps);
    if (!namesSomebody(params)) return welcome();
    if (params.anonymous) history.visitor();
    else history.show(params.user, Math.max(0, Number.parseInt(params.older ?? "0", 10) || 0), steps, steps.filter((step) => step[0] === "now").at(-1)?.[1]);
    if (modeOf() === "list" && !itemsOf().length) {
      newest.end();
      fill(moved);
      return ready(ranking, emptyPanel("No items yet.", "Write the ids of the items to rank above, for example those of one of your requests."));
    }
    busy(ranking, "Ranking…");
    const signal = newest.begin();
    const base = params.vs === "stored" ? [] : steps.slice(0, -1);
    try {
      const [path, body] = request(steps);
      const compared = steps.length ? call("POST", ...asked(request(base), signal)) : Promise.resolve(remembered?.question === question() ? remembered.answer : null);
      const [answer, before] = await Promise.all([call("POST", path, { body, signal }), compared]);
      draw(answer, before, { path, body, steps, base, signal });
    } catch (error) {
      if (givenUp(error)) return undefined;
      fill(moved);
      ready(ranking, problemPanel(error, () => update(params)));
    }
    return undefined;
  }

  const asked = ([path, body], signal) => [path, { body, signal }];

  function draw(answer, before, { path, body, steps, base, signal }) {
    const explains = (served.links ?? 1) > 0;
    const whyParams = explains ? shared(params) : null;
    const shown = Math.max(SHOWN, Number.parseInt(params.shown ?? "0", 10) || 0);
    const strip = ({ options, limit, item_ids: _, ...rest }) => rest;
    fill(moved, before && !sameRequest(answer, before) ? movedPanel({ before, after: answer, against: !steps.length ? "before the event was stored" : base.length ? "before the last change" : "without the change" + (steps.length > 1 ? "s" : ""),
      bodies: steps.length ? [strip(request(base)[1]), strip(body)] : [], why: explains && steps.length > 0, whyParams, signal }) : null);
    ready(ranking, degradedNote(answer),
      answer.items.length ? rankingTable({ answer, before, tasks: served.tasks, task: params.task, shown, whyParams,
        onEvent: (id, display, position) => askWhatHappens({ app, params, id, display, position, requestId: answer.request_id,
          whatIf: (features) => addStep(["event", id, features]), stored: () => { remembered = { question: question(), answer }; if (steps.length) changed({ steps: "" }); else update(params); } }) })
        : emptyPanel("No items.", "Nothing is left to rank: everything was seen, or none of the items is known."),
      answer.items.length > shown ? h("button", { type: "button", class: "wide-button", onclick: () => changed({ shown: shown + 50, older: params.older }) }, `Show more of ${whole(answer.items.length)}`) : null,
      stageBar(answer.timing_ms), h("details", { class: "behind" }, h("summary", {}, "How this answer was made"), facts(answer)), asCurl(path, body));
    announce(`Ranked ${count(answer.items.length, "item")}; first is ${plain(answer.items[0]?.display ?? answer.items[0]?.id ?? "none", 60)}`);
    ranking.dataset.request = answer.request_id;
  }

  const sameRequest = (one, other) => one.request_id === other.request_id;

  function drawControls(steps) {
    user.set(params.anonymous ? "" : params.user);
    visitor.setAttribute("aria-pressed", String(Boolean(params.anonymous)));
    mode.set(modeOf());
    task.set(params.task || served.tasks[0]);
    bundle.set(params.bundle ?? "");
    listedField.hidden = modeOf() !== "list";
    if (document.activeElement !== listed) listed.value = params.items ?? "";
    const chosen = new Map(steps.filter((step) => step[0] === "context").map((step) => [step[1], step[2]]));
    for (const { feature, element } of contextFields) setField(element, chosen.get(feature.name));
    const clock = steps.filter((step) => step[0] === "now").at(-1)?.[1] ?? served.watermark;
    if (document.activeElement !== clockInput && clock) clockInput.value = new Date(clock).toISOString().slice(0, 19);
    drawChips(steps);
  }

  function drawChips(steps) {
    const without = (n) => changed({ steps: JSON.stringify(steps.filter((_, other) => other !== n)), older: params.older });
    refill(chips, steps.length === 0 ? null : [h("span", { class: "label" }, "Changes"),
      steps.map((step, n) => h("button", { type: "button", class: "chip", "data-step": step[0], "aria-label": `Undo: ${stepText(step)}`, onclick: () => without(n) }, h("bdi", {}, stepText(step)), h("span", { "aria-hidden": "true" }, " ✕"))),
      h("button", { type: "button", class: "small", onclick: () => changed({ steps: "" }) }, "Undo all"),
      steps.length > 1 ? h("label", { class: "inline" }, "compare with ", h("select", { id: "vs", onchange: (event) => changed({ vs: event.target.value === "stored" ? "stored" : "" }) },
        h("option", { value: "last", selected: params.vs !== "stored" }, "before the last change"), h("option", { value: "stored", selected: params.vs === "stored" }, "no changes"))) : null]);
  }

  function welcome() {
    newest.end();
    fill(moved);
    const example = served.example_user;
    const begin = h("p", {}, example ? h("button", { type: "button", class: "primary", id: "example", onclick: () => changed({ user: example }) }, "Begin with ", h("bdi", {}, plain(example, 30))) : "Type the id of a user, or begin with an anonymous visitor.");
    ready(ranking, emptyPanel("Choose somebody.", "Their ranking appears here, with what each item is likely to bring and how long each stage took.", begin));
    fill(history.element.querySelector(".timeline"), emptyPanel("No history yet.", "Everything that the ranker reads of a user is shown here, the newest first."));
  }

  /** Bundles of an experiment can be asked, whoever the user is; only who may list them can choose. */
  async function offerBundles() {
    if (!app.may("admin")) return;
    const found = await call("GET", "/v1/bundles").catch(() => ({ bundles: [] }));
    const open = found.bundles.filter((one) => ["active", "arm", "shadow"].includes(one.state));
    if (open.length < 2) return;
    bundle.input.append(...open.reverse().map((one) => h("option", { value: one.id }, `${one.state}: ${one.model} ${one.id.split("-").at(-1)}`)));
    bundle.set(params.bundle ?? "");
    bundle.element.hidden = false;
  }
  offerBundles();

  return { update, unmount: () => { ended = true; newest.end(); history.end(); } };
}

/** A choice with its label. */
export function select(label, options, choose) {
  const input = h("select", { id: fresh("choice"), onchange: () => choose(input.value) }, options.map(([value, text]) => h("option", { value }, text)));
  return { element: h("div", { class: "field" }, h("label", { for: input.id }, label), input), input, set: (value) => { input.value = value; } };
}
