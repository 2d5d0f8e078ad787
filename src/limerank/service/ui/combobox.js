// A field that searches while one types: a combobox with a list, as the ARIA practices describe it; keyboard and touch.

import { givenUp, Newest } from "./api.js";
import { debounced, fill, fresh, h } from "./dom.js";

const WAIT = 150;

/** `search(text, signal)` finds [{value, label: Node[], said}]; `choose(value)` is told the choice; any text may be chosen. */
export function combobox({ label, placeholder = "", hint = "", search, choose }) {
  const input = h("input", { id: fresh("find"), role: "combobox", type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false", maxlength: "256", dir: "auto",
    placeholder, "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": fresh("list") });
  const list = h("ul", { id: input.getAttribute("aria-controls"), role: "listbox", "aria-label": label, hidden: true });
  const told = h("p", { class: "hint", id: fresh("hint"), role: "status" }, hint);
  input.setAttribute("aria-describedby", told.id);
  const newest = new Newest();
  let found = [];
  let active = -1;

  const isOpen = () => input.getAttribute("aria-expanded") === "true";
  function open(shown) {
    input.setAttribute("aria-expanded", String(shown));
    list.hidden = !shown;
    if (!shown) activate(-1);
  }
  function activate(number) {
    active = number;
    [...list.children].forEach((one, n) => one.setAttribute("aria-selected", String(n === number)));
    const chosen = list.children[number];
    if (chosen) input.setAttribute("aria-activedescendant", chosen.id);
    else input.removeAttribute("aria-activedescendant");
    chosen?.scrollIntoView({ block: "nearest" });
  }
  function take(value) {
    newest.end();
    open(false);
    input.value = value;
    told.textContent = hint;
    choose(value);
  }
  async function look() {
    try {
      const { options, more } = await search(input.value, newest.begin());
      if (document.activeElement !== input) return;
      found = options;
      fill(list, options.map((one, n) => h("li", { id: fresh("option"), role: "option", "aria-selected": "false",
        onpointerdown: (event) => event.preventDefault(), onclick: () => take(options[n].value) }, one.label)));
      open(options.length > 0);
      told.textContent = options.length === 0 ? "Nothing begins with this; Enter takes it as it is." : `${options.length}${more ? " and more" : ""} found; arrows choose.`;
    } catch (error) {
      if (givenUp(error)) return;
      open(false);
      told.textContent = error.message;
    }
  }
  const lookSoon = debounced(WAIT, look);
  input.addEventListener("input", lookSoon);
  input.addEventListener("focus", () => { input.select(); });
  input.addEventListener("blur", () => { newest.end(); open(false); told.textContent = hint; });
  input.addEventListener("click", () => { if (!isOpen()) look(); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!isOpen()) { look(); return; }
      const step = event.key === "ArrowDown" ? 1 : -1;
      activate((active + step + found.length + (active < 0 && step < 0 ? 1 : 0)) % found.length);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (active >= 0) take(found[active].value);
      else if (input.value) take(input.value);
    } else if (event.key === "Escape" && isOpen()) {
      event.preventDefault();
      open(false);
    }
  });
  const element = h("div", { class: "field find" }, h("label", { for: input.id }, label), h("div", { class: "list-under" }, input, list), told);
  return { element, input, set: (value) => { if (document.activeElement !== input || !value) input.value = value ?? ""; } };
}
