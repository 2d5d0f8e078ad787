// The frame around the views: who is asked (the service and its key), which view is open, and what the address says.

import { go, here, link, shared } from "./address.js";
import { call, givenUp, key, useKey } from "./api.js";
import { askForKey, keyForm, problemPanel } from "./dialogs.js";
import { announce, data, fill, h } from "./dom.js";

const VIEWS = {
  try: { name: "Try", load: () => import("./try.js") },
  why: { name: "Why", load: () => import("./why.js") },
  links: { name: "Links", load: () => import("./links.js") },
  compare: { name: "Compare", load: () => import("./compare.js") },
  operate: { name: "Operate", load: () => import("./operate.js") },
};

const main = document.getElementById("main");
const app = {
  info: null,
  may: (scope) => (app.info?.scopes ?? []).includes(scope) || (app.info?.scopes ?? []).includes("admin"),
  refresh: () => learn().then(drawService),
};
let open = { name: null, view: null };
let turn = 0;

async function learn() {
  app.info = await call("GET", "/v1/info");
}

function drawViews(name, params) {
  fill(document.getElementById("views"), Object.entries(VIEWS).map(([view, { name: text }]) =>
    h("a", { href: link(view, shared(params)), "aria-current": view === name ? "page" : null }, text)));
}

function drawService() {
  const served = app.info?.served;
  fill(document.getElementById("service"),
    served ? h("span", { class: "chip", title: `Active bundle ${served.bundle}` }, h("span", { class: "unseen" }, "Active bundle: "), data(served.model, 24), h("code", {}, served.bundle.split("-").at(-1))) : null,
    h("button", { type: "button", class: "small", id: "key-button", "aria-label": key() ? "Key: one is in use; change it" : "Key: none is in use; enter one", onclick: () => askForKey(key(), changeKey) }, key() ? "Key ✓" : "Key"));
}

function changeKey(text) {
  useKey(text);
  fill(main, h("p", { class: "waiting" }, "Asking the service…"));
  start();
}

function needKey() {
  if (main.querySelector("form.key")) return;
  close();
  const { form, input } = keyForm("", changeKey);
  fill(main, h("h1", { tabindex: "-1" }, "This service wants a key"),
    h("div", { class: "card narrow" }, key() ? h("p", { role: "alert" }, "The key that was given is not valid (any more).") : null,
      h("p", {}, "What you can do here is what the key allows: ", h("code", {}, "rank"), " to try and explain, ", h("code", {}, "write"), " to store events, ", h("code", {}, "admin"), " for users and bundles."), form));
  drawService();
  input.focus();
}

function close() {
  open.view?.unmount?.();
  open = { name: null, view: null };
}

async function show() {
  const mine = ++turn;
  const { view: asked, params } = here();
  const name = Object.hasOwn(VIEWS, asked) ? asked : "try";
  drawViews(name, params);
  if (name !== open.name) {
    const first = open.name === null;
    close();
    document.title = `${VIEWS[name].name} · limerank inspector`;
    try {
      const module = await VIEWS[name].load();
      if (mine !== turn) return;
      fill(main);
      open = { name, view: module.mount(main, app) };
    } catch (error) {
      fill(main, problemPanel(error, () => location.reload()));
      return;
    }
    if (!first) {
      scrollTo(0, 0);
      main.querySelector("h1")?.focus();
      announce(`${VIEWS[name].name} opened`);
    }
  }
  open.view.update(params);
}

async function start() {
  close();
  try {
    await learn();
  } catch (error) {
    drawViews(here().view, here().params);
    drawService();
    if (error.status === 401) needKey();
    else if (!givenUp(error)) fill(main, h("h1", { tabindex: "-1" }, "The service does not answer"), problemPanel(error, start));
    return;
  }
  drawService();
  await show();
}

addEventListener("hashchange", () => { if (app.info) show(); });
addEventListener("limerank:address", () => { if (app.info) show(); });
addEventListener("limerank:key-needed", () => needKey());
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); main.scrollIntoView(); });
if (!location.hash) go("try", {}, { replace: true });
start();
