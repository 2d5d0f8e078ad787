// Links: a map of what each attracts, how much each is used, which are dead or twins, and how many are really needed.

import { go, link } from "./address.js";
import { call, givenUp, Newest } from "./api.js";
import { bars, lines, tiles } from "./charts.js";
import { busy, emptyPanel, problemPanel, ready } from "./dialogs.js";
import { announce, figure, fill, h, item, plain, table } from "./dom.js";
import { attractions } from "./explained.js";
import { count, fixed, percent, time, whole } from "./format.js";
import { select } from "./try.js";

const ORDERS = [["usage", "Most used first"], ["number", "By number"], ["spread", "Most selective first"]];

/** Build the view; `update` follows the address. */
export function mount(main, app) {
  const served = app.info.served;
  const newest = new Newest();
  let params = {};
  let known = { bundle: null, answer: null };
  const changed = (more) => go("links", { ...params, ...more });
  const order = select("Order", ORDERS, (value) => changed({ order: value === "usage" ? "" : value }));
  const answer = h("div", { id: "links" });
  const refresh = h("button", { type: "button", onclick: () => { known = { bundle: null, answer: null }; update(params); } }, "Refresh");
  fill(main, h("h1", { tabindex: "-1" }, "The links"),
    h("p", { class: "lead" }, "Everything between a candidate and a history goes through these few vectors. A link attracts some items of the catalog, whoever asks; what it then reads of a history is up to the user."),
    answer);
  const tools = h("div", { class: "tools" }, order.input, refresh);
  order.input.setAttribute("aria-label", "Order of links");

  async function update(given) {
    params = given;
    order.set(ORDERS.some(([value]) => value === params.order) ? params.order : "usage");
    if (served.links === 0 && !params.bundle) return ready(answer, emptyPanel(`${served.model} has no links.`, "Only LIME rankers have them; see “The twenty rankers” in the documentation."));
    if (known.answer && known.bundle === (params.bundle ?? "")) return draw(known.answer);
    busy(answer, "Walking through the catalog…");
    try {
      const found = await call("GET", "/v1/links", { query: { bundle: params.bundle }, signal: newest.begin() });
      known = { bundle: params.bundle ?? "", answer: found };
      draw(found);
    } catch (error) {
      if (!givenUp(error)) ready(answer, problemPanel(error, () => update(params)));
    }
    return undefined;
  }

  function draw(found) {
    const dead = found.links.filter((one) => one.dead);
    const twins = found.links.filter((one) => one.duplicate_of !== null && one.duplicate_of !== undefined);
    const used = found.usage.rankings > 0;
    const sorted = [...found.links].sort(Object.hasOwn(BY, params.order ?? "") ? BY[params.order] : used ? BY.usage : BY.number);
    const chosen = found.links.find((one) => String(one.link) === params.link);
    ready(answer,
      h("div", { class: "cards" },
        fact(whole(found.links.length), "links", `${whole(found.heads)} heads each`),
        fact(fixed(found.spectrum.effective_rank.weights, 1), "effective rank", "how many directions the items really use"),
        fact(whole(dead.length), "dead", dead.length ? dead.map((one) => one.link).join(", ") : "all tell items apart"),
        fact(whole(twins.length), "duplicates", twins.length ? twins.map((one) => `${one.link} = ${one.duplicate_of}`).join(", ") : "none is another’s twin")),
      h("section", { class: "card", "aria-labelledby": "map-title" }, h("div", { class: "title" }, h("h2", { id: "map-title" }, "Map"), tools),
        h("p", { class: "faint" }, used ? `The stronger the color, the more of the scores it makes: of ${count(found.usage.rankings, "ranking")} since ${time(found.usage.since)} UTC. ${found.usage.means ?? ""}` : "No traffic yet: colors appear when rankings are served (those of this page do not count)."),
        figureOf(sorted, found, used)),
      chosen ? detail(chosen, found, used) : h("p", { class: "faint", id: "link-detail" }, "Choose a link of the map to see what it attracts."),
      h("section", { class: "card", "aria-labelledby": "spectrum-title" }, h("h2", { id: "spectrum-title" }, "Spectrum"), spectrum(found.spectrum)),
      found.items_read < found.items ? h("p", { class: "faint" }, `Spread, similarity and spectrum are of an even sample: ${whole(found.items_read)} of ${whole(found.items)} items.`) : null);
    if (chosen) announce(`Link ${chosen.link}`);
  }

  function figureOf(sorted, found, used) {
    const cells = sorted.map((one) => ({ key: one.link, name: whole(one.link), value: used ? one.usage : 0, said: used ? percent(one.usage) : "", what: what(one), flag: flag(one), current: String(one.link) === params.link,
      href: link("links", { ...params, link: one.link }), title: `Link ${one.link}` }));
    const number = (name) => ({ name, kind: "number" });
    const rows = sorted.map((one) => [`${one.link}`, what(one, 60), used ? percent(one.usage, 2) : "–", fixed(one.weight, 4), fixed(one.spread, 4), one.similarity === null || one.similarity === undefined ? "–" : `${fixed(one.similarity, 3)} with ${one.similar_to}`, flag(one) ?? ""]);
    return h("div", {}, tiles(cells, { label: "Links" }), h("details", { class: "behind" }, h("summary", {}, "The numbers"),
      table(["link", "attracts", number("usage"), number("mean weight"), number("spread"), number("similarity"), "note"], rows, { caption: "All links" })));
  }

  function detail(one, found, used) {
    const items = one.items ?? [];
    return h("section", { class: "card", id: "link-detail", "aria-labelledby": "link-title" }, h("h2", { id: "link-title" }, `Link ${one.link}`, flag(one) ? h("span", { class: "tag warn" }, flag(one)) : null),
      one.dead ? h("p", { class: "note" }, `Dead: its weights hardly differ from item to item (spread ${fixed(one.spread, 5)}), so it orders nothing. Fewer links may do as well.`) : null,
      one.duplicate_of !== null && one.duplicate_of !== undefined ? h("p", { class: "note" }, "It lies on the same items as ", h("a", { href: link("links", { ...params, link: one.duplicate_of }) }, `link ${one.duplicate_of}`), ` (similarity ${fixed(one.similarity, 3)}).`) : null,
      h("p", {}, `${used ? `${percent(one.usage)} of what links add to the ten best items; mean` : "Mean"} weight ${fixed(one.weight, 4)}, spread ${fixed(one.spread, 4)}${one.similar_to === null || one.similar_to === undefined ? "" : `; most like link ${one.similar_to} (${fixed(one.similarity, 2)})`}${one.level && one.level !== "link" ? `; ${one.level}${one.parent === null ? "" : ` below ${one.parent}`}` : ""}.`),
      h("div", { class: "two even" }, h("div", {}, h("h3", {}, "Attracts"), attractions({ attributes: one.attributes }, 12)),
        h("div", {}, h("h3", {}, "Lies most on"), items.length ? bars(items.slice(0, 12).map((each) => ({ name: item(each.id, each.display, 36), value: each.weight, said: fixed(each.weight, 4) })), { label: "Items by weight" }) : h("p", { class: "faint" }, "No items."))));
  }

  return { update, unmount: () => newest.end() };
}

const BY = {
  usage: (a, b) => (b.usage ?? 0) - (a.usage ?? 0) || a.link - b.link,
  number: (a, b) => a.link - b.link,
  spread: (a, b) => b.spread - a.spread || a.link - b.link,
};

const flag = (one) => (one.dead ? "dead" : one.duplicate_of === null || one.duplicate_of === undefined ? null : `same as ${one.duplicate_of}`);

const what = (one, most = 24) => { const first = one.attributes?.[0]; return first ? `${plain(first.feature, 16)}=${plain(first.value, most)}` : "no single attribute"; };

const fact = (value, name, note) => h("div", { class: "fact" }, h("span", { class: "big" }, value), h("span", {}, name), h("small", { class: "faint" }, plain(note, 80)));

function spectrum(found) {
  const series = [["weights", "weights of items"], ["links", "link embeddings"]].filter(([key]) => found[key]?.length).map(([key, name]) => ({ name, points: found[key].map((value, n) => [n + 1, value]) }));
  const longest = Math.max(...series.map((one) => one.points.length));
  const rows = Array.from({ length: longest }, (_, n) => [whole(n + 1), ...series.map((one) => (one.points[n] ? fixed(one.points[n][1], 4) : "–"))]);
  const rank = found.effective_rank;
  return figure("Singular values, the largest is 1", lines(series, { label: "Spectrum of links", x: "number", y: "singular value", high: 1, marks: true }),
    [{ name: "number", kind: "number" }, ...series.map((one) => ({ name: one.name, kind: "number" }))], rows,
    `Effective rank: ${fixed(rank.weights, 1)} of the weights, ${fixed(rank.links, 1)} of the embeddings. Far below the number of links, fewer would do; near it, more may help.`);
}
