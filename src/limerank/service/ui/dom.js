// Elements without markup: everything that comes from a log is text, and stays text. There is no innerHTML in this folder.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("button", {class: "quiet", onclick: act}, "Text", otherElement). */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for drawings. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replace what is in an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const ABLE = "a[href], button:not([disabled]), input, select, textarea, summary, [tabindex]";
const labelOf = (element) => element.getAttribute("aria-label") ?? element.textContent;

/** Replace what is in an element, without closing what somebody opened or losing the focus that was inside. */
export function refill(element, ...children) {
  const within = element.contains(document.activeElement) && document.activeElement !== element;
  const focused = within ? labelOf(document.activeElement) : "";
  const opened = new Set([...element.querySelectorAll("details[open] > summary")].map((one) => one.textContent));
  fill(element, ...children);
  for (const summary of element.querySelectorAll("details > summary")) if (opened.has(summary.textContent)) summary.parentElement.open = true;
  if (!within) return;
  const again = [...element.querySelectorAll(ABLE)].find((one) => labelOf(one) === focused) ?? element.querySelector("button:not([disabled]), a[href]");
  (again ?? document.querySelector("main h1"))?.focus({ preventScroll: true });
}

const SHOWN = 60;

/** Text from a log: in its own direction, cut where it is long, with a way to all of it. */
export function data(value, most = SHOWN) {
  const text = String(value ?? "");
  if (text.length <= most) return h("bdi", { class: "data", dir: "auto" }, text === "" ? "(empty)" : text);
  const shown = cut(text, most);
  const all = `Show all ${text.length.toLocaleString("en-US")} characters`;
  return h("span", { class: "data cut" }, h("bdi", { dir: "auto" }, `${shown}…`), " ",
    h("button", { type: "button", class: "more", "aria-label": all, title: all, "data-full": "", onclick: (event) => { event.preventDefault(); event.stopPropagation(); showAll(text); } }, "all"));
}

/** The beginning of a text, never half a character. */
export function cut(text, most = SHOWN) {
  if (text.length <= most) return text;
  const end = /[\uD800-\uDBFF]/.test(text[most - 1]) ? most - 1 : most;
  return text.slice(0, end);
}

/** Plain text for labels and options, where no element fits. */
export function plain(value, most = SHOWN) {
  const text = String(value ?? "");
  return text.length <= most ? text : `${cut(text, most)}…`;
}

/** Text from a log where no button fits (in options, links and buttons): cut, with the rest as a tooltip. */
export function short(value, most = SHOWN) {
  const text = String(value ?? "");
  return h("bdi", { class: "data", dir: "auto", title: text.length > most ? cut(text, 1000) : null }, plain(text, most));
}

function showAll(text) {
  const box = h("dialog", { class: "full", "aria-label": "Full text" },
    h("div", { class: "scroll", tabindex: "0" }, h("pre", { dir: "auto" }, text)),
    h("div", { class: "actions" }, h("button", { type: "button", class: "primary", onclick: () => box.close() }, "Close")));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

/** An item as people know it: what it is called, and its id. */
export function item(id, display, most = 48) {
  const called = display ?? null;
  return h("span", { class: "item" }, called === null ? data(id, most) : [data(called, most), " ", h("small", {}, data(id, 24))]);
}

/** A table with a caption for those who cannot see it; `columns` are texts or {name, kind: "number" | "text"}. */
export function table(columns, rows, { caption = "", style = "" } = {}) {
  const heads = columns.map((column) => (typeof column === "string" ? { name: column, kind: "text" } : column));
  return h("div", { class: `wide ${style}`, tabindex: "0", role: "region", "aria-label": caption || "Table" },
    h("table", { role: "table" }, caption ? h("caption", { class: "unseen" }, caption) : null,
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map((head) => h("th", { scope: "col", role: "columnheader", class: head.kind }, head.name === "" ? h("span", { class: "unseen" }, "actions") : head.name)))),
      // roles are written out, because styles for phones lay some rows out as grids, which would lose them
      h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, row.map((cell, n) => {
        const content = cell instanceof Node || Array.isArray(cell) ? cell : data(cell ?? "–", 80);
        return n === 0 ? h("th", { scope: "row", role: "rowheader", class: heads[n].kind }, content) : h("td", { role: "cell", class: heads[n]?.kind, "data-label": heads[n]?.name ?? null }, content);
      }))))));
}

/** A plot with its caption, and the same numbers as a table. */
export function figure(title, drawing, columns, rows, note = "") {
  return h("figure", {}, h("figcaption", {}, h("strong", {}, title), note ? [" ", h("span", { class: "faint" }, note)] : null), drawing,
    h("details", { class: "behind" }, h("summary", {}, "The numbers"), table(columns, rows, { caption: title })));
}

/** Say something to those who listen instead of looking. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

let ids = 0;

/** An id that nothing else on the page has. */
export function fresh(prefix = "n") {
  ids += 1;
  return `${prefix}-${ids}`;
}

/** Call a function when nothing has asked for it during so many milliseconds. */
export function debounced(milliseconds, act) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), milliseconds);
  };
}
