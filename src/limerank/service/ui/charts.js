// Drawings: lines, bars, slopes and waterfalls, sized for the width they have. Colors are classes, so both schemes work.

import { h, s, short } from "./dom.js";
import { fixed } from "./format.js";

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "13 4"];

/** Draw now and whenever the width changes; `paint(width)` returns an svg. */
export function responsive(paint) {
  const box = h("div", { class: "drawing" });
  let width = 0;
  const observer = new ResizeObserver(() => {
    const wanted = Math.round(box.clientWidth);
    if (wanted && wanted !== width) {
      width = wanted;
      box.replaceChildren(paint(width));
    }
  });
  observer.observe(box);
  return box;
}

/** Numbers for an axis from 0 (or `low`) that are easy to read. */
export function ticks(low, high, most = 4) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

const multiples = (low, high, step) => Array.from({ length: Math.max(0, Math.floor(high / step) - Math.ceil(low / step) + 1) }, (_, n) => (Math.ceil(low / step) + n) * step);

const axisText = (value) => (Math.abs(value) >= 1000 ? value.toLocaleString("en-US", { maximumFractionDigits: 0 }) : String(Number(value.toPrecision(4))).replace("-", "−"));

/** Lines: series is [{name, points: [[x, y]]}], y may be null where nothing is known. */
export function lines(series, { label, x, y, height = 190, xText = axisText, xStep, low = 0, high, marks = false }) {
  const legend = series.length < 2 ? null : h("ul", { class: "legend" }, series.map((one, n) => h("li", {}, s("svg", { class: "key", viewBox: "0 0 30 10", "aria-hidden": "true" }, s("line", { class: `stroke line-${n % 6}`, x1: 0, x2: 30, y1: 5, y2: 5, "stroke-dasharray": DASHES[n % 5] || null })), short(one.name, 24))));
  const drawing = responsive((width) => {
    const points = series.flatMap((one) => one.points.filter((point) => point[1] !== null));
    const xs = series.flatMap((one) => one.points.map((point) => point[0]));
    const left = 46;
    const right = width - 10;
    const bottom = height - 34;
    const top = 12;
    const [x0, x1] = xs.length ? [Math.min(...xs), Math.max(...xs)] : [0, 1];
    const most = high ?? (Math.max(low, ...points.map((point) => point[1])) > low ? Math.max(...points.map((point) => point[1])) : low + 1);
    const across = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (right - left);
    const down = (value) => bottom - ((value - low) / (most - low || 1)) * (bottom - top);
    const made = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    for (const tick of ticks(low, most)) made.append(s("line", { class: "grid", x1: left, x2: right, y1: down(tick), y2: down(tick) }), s("text", { x: left - 6, y: down(tick) + 4, "text-anchor": "end" }, axisText(tick)));
    const along = xStep ? multiples(x0, x1, xStep * (width < 300 ? 2 : 1)) : ticks(x0, x1, Math.max(2, Math.floor(width / 110)));
    for (const tick of along) made.append(s("text", { x: Math.min(Math.max(across(tick), left + 14), right - 14), y: bottom + 16, "text-anchor": "middle" }, xText(tick)));
    made.append(s("text", { class: "axis", x: left, y: height - 3 }, x), s("text", { class: "axis", x: right, y: height - 3, "text-anchor": "end" }, `↑ ${y}`));
    if (!points.length) made.append(s("text", { x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle" }, "nothing yet"));
    series.forEach((one, n) => {
      for (const piece of pieces(one.points)) {
        const path = piece.map(([a, b]) => `${across(a).toFixed(1)},${down(Math.min(b, most)).toFixed(1)}`).join(" ");
        made.append(piece.length > 1 ? s("polyline", { class: `stroke line-${n % 6}`, points: path, "stroke-dasharray": DASHES[n % 5] || null }) : s("circle", { class: `line-${n % 6}`, cx: across(piece[0][0]), cy: down(piece[0][1]), r: 2.5 }));
        if (marks && piece.length > 1) for (const [a, b] of piece) made.append(s("circle", { class: `line-${n % 6}`, cx: across(a), cy: down(b), r: 2.6 }, s("title", {}, `${one.name}, ${xText(a)}: ${fixed(b, 4)}`)));
      }
    });
    return made;
  });
  return h("div", {}, legend, drawing);
}

function pieces(points) {
  const found = [[]];
  for (const point of points) {
    if (point[1] === null || point[1] === undefined) found.push([]);
    else found.at(-1).push(point);
  }
  return found.filter((piece) => piece.length);
}

/** Horizontal bars in text: rows of {name: Node | text, value, said, style}; `largest` sets the scale. */
export function bars(rows, { label, largest } = {}) {
  const most = largest ?? Math.max(1e-12, ...rows.map((row) => Math.abs(row.value)));
  return h("ul", { class: "bars", "aria-label": label }, rows.map((row) => h("li", {},
    h("span", { class: "name" }, row.name), h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: `bar ${row.style ?? ""}`, vars: { "--part": String(Math.min(1, Math.abs(row.value) / most)) } })), h("span", { class: "number" }, row.said))));
}

/** A waterfall: each row begins where the one before ended, the last is the sum; rows are {name, value, said, style, total}. */
export function waterfall(rows, { label, range }) {
  let at = 0;
  const placed = rows.map((row) => {
    const from = row.total ? 0 : at;
    at = row.total ? at : at + row.value;
    return { ...row, from, to: row.total ? row.value : at };
  });
  const edges = placed.flatMap((row) => [row.from, row.to]);
  const [low, high] = range ?? [Math.min(0, ...edges), Math.max(0, ...edges)];
  const part = (value) => (value - low) / (high - low || 1);
  return { extent: [low, high], element: h("ol", { class: "waterfall", "aria-label": label }, placed.map((row) => {
    const [left, right] = [Math.min(row.from, row.to), Math.max(row.from, row.to)].map(part);
    return h("li", { class: row.total ? "total" : null, "data-part": row.key ?? null, "data-value": String(row.value) },
      h("span", { class: "name" }, row.name),
      h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: "zero", vars: { "--at": String(part(0)) } }), h("span", { class: `bar ${row.total ? "sum" : row.value < 0 ? "minus" : "plus"}`, vars: { "--from": String(left), "--to": String(right) } })),
      h("span", { class: "number" }, row.said));
  })) };
}

/** Where items stood and stand: two columns of positions with a line for each; rows are {name, before, after}. */
export function slopes(rows, { label, left, right, depth }) {
  return responsive((width) => {
    const step = 22;
    const height = depth * step + 44;
    const room = Math.min(width * 0.32, Math.max(170, width / 2 - 180));
    const down = (position) => 30 + position * step - step / 2;
    const listed = (position) => Boolean(position) && position <= depth;
    const stub = 26; // who leaves or comes in gets a short stroke
    const made = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    const ends = [room, width - room];
    made.append(s("text", { class: "axis", x: room, y: 14, "text-anchor": "end" }, left), s("text", { class: "axis", x: width - room, y: 14 }, right));
    rows.forEach((row) => {
      const up = (row.after ?? Infinity) < (row.before ?? Infinity);
      const style = row.before === row.after ? "same" : up ? "up" : "down";
      const fits = Math.max(4, Math.floor(room / 8) - 4);
      const [then, now] = [listed(row.before), listed(row.after)];
      const strokes = then && now ? [[ends[0] + 4, down(row.before), ends[1] - 4, down(row.after)]]
        : then ? [[ends[0] + 4, down(row.before), ends[0] + 4 + stub, down(row.before) + 8]] : [[ends[1] - 4 - stub, down(row.after) + 8, ends[1] - 4, down(row.after)]];
      for (const [x1, y1, x2, y2] of strokes) made.append(s("line", { class: `slope ${style}`, x1, y1, x2, y2 }, s("title", {}, row.name)));
      if (then) made.append(s("text", { x: ends[0], y: down(row.before) + 4, "text-anchor": "end" }, `${shortened(row.name, fits)} ${row.before}`));
      if (now) made.append(s("text", { x: ends[1], y: down(row.after) + 4 }, `${row.after} ${shortened(row.name, fits)}`));
    });
    return made;
  });
}

const shortened = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);

/** A small picture of one number over another: tiles, the darker the more; cells are {name, value, said, href, current, flag}. */
export function tiles(cells, { label }) {
  const most = Math.max(1e-12, ...cells.map((cell) => cell.value ?? 0));
  return h("ul", { class: "tiles", "aria-label": label }, cells.map((cell) => h("li", {}, h("a", { href: cell.href, class: `heat-${heat(cell.value, most)} ${cell.flag ? "flagged" : ""}`, "aria-current": cell.current ? "true" : null, "data-link": cell.key, title: cell.title ?? null },
    h("span", { class: "head" }, h("b", {}, cell.name), h("span", {}, cell.said)), h("span", { class: "what" }, cell.what), cell.flag ? h("span", { class: "flag" }, cell.flag) : null))));
}

const heat = (value, most) => (value === null || value === undefined ? 0 : Math.min(6, Math.floor((value / most) * 6.99)));
