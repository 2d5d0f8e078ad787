// Questions, keys, and problems: what is said when something needs a decision or went wrong.

import { fill, fresh, h, refill } from "./dom.js";

/** Ask before something happens; resolves to whether it should. Escape and "Cancel" say no. */
export function confirmed({ title, lines, action, scope }) {
  return new Promise((resolve) => {
    const heading = fresh("ask");
    const box = h("dialog", { class: "ask", "aria-labelledby": heading },
      h("h2", { id: heading }, title),
      lines.map((line) => h("p", {}, line)),
      scope ? h("p", { class: "faint" }, "Needs a key with the scope ", h("code", {}, scope), ".") : null,
      h("div", { class: "actions" },
        h("button", { type: "button", autofocus: true, onclick: () => box.close("no") }, "Cancel"),
        h("button", { type: "button", class: "primary", "data-confirm": "", onclick: () => box.close("yes") }, action)));
    box.addEventListener("close", () => { box.remove(); resolve(box.returnValue === "yes"); });
    document.body.append(box);
    box.showModal();
  });
}

const ADVICE = {
  unauthenticated: "Enter a key with “Key” at the top. `limerank keys create STORE` makes one.",
  forbidden: "Use a key that has this scope, with “Key” at the top.",
  "cross-site": "Open the inspector at the address that `limerank serve` prints.",
  "unknown-bundle": "It may have been collected, or is not being served. Choose another bundle.",
  "too-many-requests": "The service is busy. Wait a moment, then try again.",
  unavailable: "It is starting or ending. Try again in a moment.",
  deadline: "It is busy, or the catalog is large. Try again, or let it retrieve (“Recommend”).",
  "no-links": "Serve a bundle of a LIME ranker to ask why; the other views work with any ranker.",
  conflict: "Somebody else changed it meanwhile. Look at the list again.",
  internal: "This is a bug of the service. Its log has the details under the request id; please report it.",
};

/** What went wrong, and what to do about it. */
export function problemPanel(problem, retry) {
  const advice = Object.hasOwn(ADVICE, problem.kind ?? "") ? ADVICE[problem.kind] : null;
  return h("div", { class: "problem", role: "alert" },
    h("p", {}, h("strong", {}, problem.title ?? "Something went wrong")),
    h("p", { dir: "auto" }, String(problem.message).slice(0, 600)),
    advice ? h("p", {}, advice) : null,
    problem.requestId ? h("p", { class: "faint" }, "Request ", h("code", {}, problem.requestId)) : null,
    retry ? h("button", { type: "button", onclick: retry }, "Try again") : null);
}

/** Nothing to see yet, and how to change that. */
export function emptyPanel(title, ...more) {
  return h("div", { class: "empty" }, h("p", {}, h("strong", {}, title)), more.map((one) => h("p", {}, one)));
}

/** A form for a key; `given` is called with it, or with an empty text to use none. */
export function keyForm(current, given) {
  const id = fresh("key");
  const input = h("input", { id, type: "password", autocomplete: "off", spellcheck: "false", placeholder: "lr_…", value: current });
  const form = h("form", { class: "key", onsubmit: (event) => { event.preventDefault(); given(input.value.trim()); } },
    h("label", { for: id }, "Key"), input,
    h("p", { class: "faint" }, "It stays in this tab until you close it, is sent in a header only, and is never part of an address. Make one with ", h("code", {}, "limerank keys create STORE --scope rank"), "."),
    h("div", { class: "actions" },
      current ? h("button", { type: "button", onclick: () => given("") }, "Forget it") : null,
      h("button", { type: "submit", class: "primary" }, "Use this key")));
  return { form, input };
}

/** The same as a dialog. */
export function askForKey(current, given) {
  const heading = fresh("keys");
  const { form, input } = keyForm(current, (text) => { box.close(); given(text); });
  const box = h("dialog", { class: "ask", "aria-labelledby": heading }, h("h2", { id: heading }, "Key for this service"), form);
  form.querySelector(".actions").prepend(h("button", { type: "button", onclick: () => box.close() }, "Cancel"));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  input.focus();
}

/** Something that is being worked on: kept from jumping, and told to those who listen. */
export function busy(element, text) {
  element.setAttribute("aria-busy", "true");
  if (!element.hasChildNodes()) fill(element, h("p", { class: "waiting" }, text));
}

/** It is done. */
export function ready(element, ...children) {
  element.removeAttribute("aria-busy");
  refill(element, ...children);
}
