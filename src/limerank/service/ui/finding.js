// Searching users and items by how their ids begin.

import { call } from "./api.js";
import { h, short } from "./dom.js";
import { combobox } from "./combobox.js";
import { count } from "./format.js";

const FOUND = 12;

/** A field that finds users; without the scope for it, one that takes an id as it is. */
export function userField(app, choose, label = "User") {
  const may = app.may("admin");
  return combobox({
    label,
    placeholder: app.info.served.example_user ?? "an id",
    hint: may ? "" : "Searching users needs the scope admin; an id can be typed.",
    choose,
    search: async (text, signal) => {
      if (!may) return { options: [], more: false };
      const answer = await call("GET", "/v1/users", { query: { prefix: text, limit: FOUND }, signal });
      return { more: answer.more, options: answer.users.map((one) => ({ value: one.id,
        label: [short(one.id, 40), h("small", {}, count(one.events_in_bundle + one.events_stored, "event"))] })) };
    },
  });
}

/** A field that finds items by id or by what they are called. */
export function itemField(label, choose) {
  return combobox({
    label,
    placeholder: "an item id",
    choose,
    search: async (text, signal) => {
      const answer = await call("GET", "/v1/items", { query: { prefix: text, limit: FOUND }, signal });
      return { more: answer.more, options: answer.items.map((one) => ({ value: one.id,
        label: one.display ? [short(one.display, 40), h("small", {}, short(one.id, 24))] : [short(one.id, 40)] })) };
    },
  });
}
