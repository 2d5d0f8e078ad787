// Compare: two bundles on one user, or on a sample of users.

import { go, link } from "./address.js";
import { call, givenUp, Newest } from "./api.js";
import { slopes } from "./charts.js";
import { busy, emptyPanel, problemPanel, ready } from "./dialogs.js";
import { announce, figure, fill, fresh, h, item, plain, short, table } from "./dom.js";
import { userField } from "./finding.js";
import { count, fixed, long, ms, percent, probability, signed, whole } from "./format.js";
import { movement } from "./ranking.js";
import { reportLink } from "./reports.js";

const DEPTH = 20;
const SAMPLES = [20, 50, 200, 1000];
const number = (name) => ({ name, kind: "number" });

/** Build the view; `update` follows the address. */
export function mount(main, app) {
  const newest = new Newest();
  let params = {};
  let bundles = null;
  const changed = (more) => go("compare", { ...params, run: "1", ...more });
  const chooser = (label, key) => {
    const input = h("select", { id: fresh(key), onchange: () => changed({ [key]: input.value }) });
    return { element: h("div", { class: "field" }, h("label", { for: input.id }, label), input), input };
  };
  const old = chooser("Old bundle", "old");
  const fresher = chooser("New bundle", "new");
  const user = userField(app, (id) => changed({ user: id }), "Or one user");
  const sample = h("select", { id: fresh("sample"), onchange: () => changed({ user: "", sample: sample.value }) }, SAMPLES.map((size) => h("option", { value: String(size) }, count(size, "user"))));
  const run = h("button", { type: "button", class: "primary", id: "run", onclick: () => changed({ user: "", sample: sample.value, old: old.input.value, new: fresher.input.value }) }, "Compare a sample");
  const by = h("select", { id: fresh("by"), onchange: () => changed({ by: by.value }) }, h("option", { value: "" }, "history length only"), (app.info.served.user_features ?? []).map((name) => h("option", { value: name }, `and ${plain(name, 30)}`)));
  const reports = h("p", { class: "faint", id: "reports" });
  const answer = h("div", { id: "comparison" });
  fill(main, h("h1", { tabindex: "-1" }, "Compare two bundles"), h("section", { class: "card asking", "aria-label": "What to compare" },
    h("div", { class: "fields" }, old.element, fresher.element, h("div", { class: "field" }, h("label", { for: sample.id }, "Sample"), sample), h("div", { class: "field" }, h("label", { for: by.id }, "Segments by"), by), h("div", { class: "field end" }, run)), h("div", { class: "or" }, user.element), reports), answer);

  async function update(given) {
    params = given;
    if (!app.may("admin")) return ready(answer, emptyPanel("Comparing needs a key with the scope admin.", "Enter one with “Key” at the top; `limerank keys create STORE --scope admin` makes one."));
    const signal = newest.begin();
    busy(answer, "Looking at the bundles…");
    try {
      bundles ??= await call("GET", "/v1/bundles", { signal });
      drawChoices();
      user.set(params.user);
      const whole = bundles.bundles.filter((one) => one.state !== "broken");
      if (whole.length < 2) return ready(answer, emptyPanel("There is only one bundle.", "Export a second run into this store (limerank export RUN --store STORE --no-activate), and come back."));
      if (!params.run) return ready(answer, emptyPanel("Choose what to compare.", "“Compare a sample” ranks for the same users with both bundles; a user shows the two orders side by side."));
      busy(answer, "Ranking with both bundles…");
      const body = { old: old.input.value, new: fresher.input.value, limit: 100, seed: 0, deadline_ms: 30000, ...(params.user ? { user_ids: [params.user] } : { sample: Number(params.sample) || 50, by: params.by || null }) };
      const found = await call("POST", "/v1/bundles/compare", { body, signal });
      draw(found);
    } catch (error) {
      if (!givenUp(error)) ready(answer, problemPanel(error, () => { bundles = null; update(params); }));
    }
    return undefined;
  }

  function drawChoices() {
    const known = bundles.bundles.filter((one) => one.state !== "broken");
    const text = (one) => `${one.id.split("-").at(-1)} · ${one.model} · ${long(one.age_seconds)} old${one.state ? ` · ${one.state}` : ""}`;
    const current = bundles.current;
    const other = known.find((one) => one.id === bundles.previous) ?? known.findLast((one) => one.id !== current);
    const newestFirst = [...known].reverse();
    // the newer one of the two is the new one, whichever is active
    const pair = [other?.id, current].filter(Boolean).sort((a, b) => known.findIndex((one) => one.id === a) - known.findIndex((one) => one.id === b));
    for (const [field, wanted] of [[old.input, params.old ?? pair[0]], [fresher.input, params.new ?? pair.at(-1)]]) {
      fill(field, newestFirst.map((one) => h("option", { value: one.id }, text(one))));
      field.value = wanted;
    }
    by.value = params.by ?? "";
    sample.value = SAMPLES.includes(Number(params.sample)) ? String(params.sample) : "50";
    const links = known.filter((one) => [old.input.value, fresher.input.value].includes(one.id)).map((one) => reportLink(one, `Report of the run behind ${one.id.split("-").at(-1)}`));
    fill(reports, links.flatMap((one, n) => (n ? [" · ", one] : [one])));
  }

  function draw(found) {
    const one = found.user;
    ready(answer, found.compared < found.asked ? h("p", { class: "note" }, `${whole(found.compared)} of ${whole(found.asked)} users fit into the time; ask for fewer.`) : null,
      h("div", { class: "cards" },
        fact(percent(found.all.overlap_10, 0), "of the best 10 in both", "overlap at 10"),
        fact(percent(found.all.overlap_100, 0), "of the best 100 in both", "overlap at 100"),
        fact(fixed(found.all.tau, 2), "Kendall’s tau", "1: the same order"),
        fact(signed(found.all.score_shift, 4), "mean score shift", `mean difference ${fixed(found.all.score_difference, 4)}`),
        fact(one ? (found.all.same_first ? "yes" : "no") : percent(found.all.same_first, 0), one ? "the same first item" : "have the same first item", `items moved ${fixed(found.all.moved, 1)} positions on average`)),
      one ? orders(one, found) : [segments(found), changedMost(found)],
      h("p", { class: "faint" }, `${count(found.compared, "user")}, the best ${whole(found.limit)} by ${plain(found.task, 30)}, in ${ms(found.took_ms)}${one ? "" : `; seed ${found.seed}`}.`));
    announce(`Compared ${count(found.compared, "user")}: ${percent(found.all.overlap_10, 0)} of the best 10 are in both`);
  }

  function segments(found) {
    const rows = found.segments.map((one) => [`${one.feature === "history" ? "history " : `${plain(one.feature, 20)} = `}${plain(one.value, 40)}`, whole(one.users), bar(one.overlap_10), bar(one.overlap_100), fixed(one.tau, 2), signed(one.score_shift, 4)]);
    return h("section", { class: "card", "aria-labelledby": "segments-title" }, h("h2", { id: "segments-title" }, "By segment"),
      table(["segment", number("users"), number("overlap at 10"), number("overlap at 100"), number("tau"), number("score shift")], rows, { caption: "Agreement by segment" }));
  }

  function changedMost(found) {
    const rows = found.most_changed.map((one) => [h("a", { href: link("compare", { ...params, old: found.old, new: found.new, user: one.user_id }) }, short(one.user_id, 40)), whole(one.history), bar(one.overlap_10), fixed(one.tau, 2), signed(one.score_shift, 4), one.same_first ? "same" : "another"]);
    return h("section", { class: "card", "aria-labelledby": "changed-title" }, h("h2", { id: "changed-title" }, "Who changes most"), table(["user", number("history"), number("overlap at 10"), number("tau"), number("score shift"), "first item"], rows, { caption: "Users whose ranking changes most" }));
  }

  function orders(one, found) {
    const shown = one.items.filter((each) => Math.min(each.old_position ?? Infinity, each.new_position ?? Infinity) <= DEPTH);
    const name = (id) => id.split("-").at(-1);
    const rows = [...shown].sort((a, b) => (a.new_position ?? 1e9) - (b.new_position ?? 1e9)).map((each) => [item(each.id, each.display), place(each.old_position), place(each.new_position), each.old_position && each.new_position ? movement(each.old_position, each.new_position, found.limit) : "–", probability(each.old_score ?? NaN), probability(each.new_score ?? NaN)]);
    const drawing = slopes(shown.map((each) => ({ name: plain(each.display ?? each.id, 40), before: each.old_position, after: each.new_position })), { label: `Positions under both bundles, the first ${DEPTH}`, left: `old ${name(found.old)}`, right: `new ${name(found.new)}`, depth: Math.min(DEPTH, one.items.length) });
    return h("section", { class: "card", "aria-labelledby": "orders-title" }, h("h2", { id: "orders-title" }, "Both orders for ", h("bdi", {}, plain(one.user_id, 40))),
      figure(`The first ${DEPTH}`, drawing, ["item", number("old"), number("new"), number("moved"), number("old score"), number("new score")], rows, "Blue rises, dashed orange falls; short strokes come from, or go, below."));
  }

  const place = (position) => (position ? whole(position) : `below ${DEPTH * 5}`);
  return { update, unmount: () => newest.end() };
}

const fact = (value, name, note) => h("div", { class: "fact" }, h("span", { class: "big" }, value), h("span", {}, name), h("small", { class: "faint" }, note));

const bar = (value) => h("span", { class: "likely" }, h("span", { class: "number" }, percent(value, 0)), h("span", { class: "meter", "aria-hidden": "true", vars: { "--part": String(value ?? 0) } }));
