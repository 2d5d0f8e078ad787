// "Something happens with this item": a what-if event, or, if the key allows and the person confirms, a real one.

import { call } from "./api.js";
import { confirmed, problemPanel } from "./dialogs.js";
import { announce, data, fill, fresh, h, item, plain } from "./dom.js";
import { valueOf } from "./request.js";

let last = {};

/** A field for a feature: a choice where all values are known, else free. */
export function featureField(feature, value, changed) {
  const id = fresh("feature");
  const values = sorted(feature.values ?? []);
  const choices = feature.kind === "categorical" && !feature.more && values.length > 0;
  let input;
  let listing = null;
  if (choices) {
    input = h("select", { id, name: feature.name }, h("option", { value: "" }, "unknown"), values.map((one) => h("option", { value: String(one), selected: String(one) === String(value ?? "") }, plain(one, 40))));
    if (value !== undefined && value !== "" && !values.map(String).includes(String(value))) input.append(h("option", { value: String(value), selected: true }, plain(value, 40)));
  } else {
    const listed = feature.kind === "categorical" || feature.kind === "multi_valued" ? fresh("values") : null;
    input = h("input", { id, name: feature.name, type: feature.kind === "continuous" ? "number" : "text", step: "any", autocomplete: "off", list: listed, placeholder: "unknown", dir: "auto",
      value: value === undefined ? "" : Array.isArray(value) ? value.join(", ") : String(value) });
    if (listed) listing = h("datalist", { id: listed }, values.map((one) => h("option", { value: String(one) })));
  }
  if (changed) input.addEventListener("change", () => changed(feature, input.value));
  return h("div", { class: "field" }, h("label", { for: id }, plain(feature.name, 30)), input, listing);
}

/** Show another value in a field; what is being typed there is left alone. */
export function setField(element, value) {
  const input = element.querySelector("input, select");
  if (input.tagName === "INPUT" && input === document.activeElement) return;
  const text = value === undefined ? "" : Array.isArray(value) ? value.join(", ") : String(value);
  if (input.tagName === "SELECT" && ![...input.options].some((one) => one.value === text)) input.append(h("option", { value: text }, plain(text, 40)));
  input.value = text;
}

/** Numbers in their order, even where they are texts. */
const sorted = (values) => (values.every((one) => one !== "" && Number.isFinite(Number(one))) ? [...values].sort((a, b) => Number(a) - Number(b)) : values);

/** Values to begin with: those of last time, else "it happened": the largest that is known. */
function begun(feature) {
  if (feature.name in last) return last[feature.name];
  if (feature.kind === "continuous" && feature.values?.length) return Number(feature.values.at(-1).toPrecision(3));
  const values = (feature.values ?? []).map(String);
  return feature.kind === "categorical" && values.includes("1") ? "1" : undefined;
}

/** Ask what happens; `whatIf(features)` for a try, `stored()` after a real event was written. */
export function askWhatHappens({ app, params, id, display, position, requestId, whatIf, stored }) {
  const heading = fresh("happens");
  const features = app.info.served.event ?? [];
  const fields = features.map((feature) => featureField(feature, begun(feature)));
  const trouble = h("div", {});
  const given = () => {
    last = {};
    const values = {};
    features.forEach((feature, n) => {
      const text = fields[n].querySelector("input, select").value.trim();
      if (text !== "") {
        last[feature.name] = text;
        values[feature.name] = valueOf(feature, text);
      }
    });
    return values;
  };
  const real = !params.anonymous && app.may("write");
  const box = h("dialog", { class: "ask", "aria-labelledby": heading },
    h("h2", { id: heading }, "What happens with ", item(id, display), "?"),
    h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); const values = given(); box.close(); whatIf(values); } },
      features.length ? h("div", { class: "fields" }, fields) : h("p", {}, "This log has no features of events: that it happened is all there is to say."),
      trouble,
      h("p", { class: "faint" }, "“What if” changes nothing but this page. ",
        real ? "“Store” writes a real event, after asking once more." : params.anonymous ? "A visitor has no id, so nothing can be stored." : "Storing real events needs a key with the scope write."),
      h("div", { class: "actions" },
        h("button", { type: "button", onclick: () => box.close() }, "Cancel"),
        real ? h("button", { type: "button", "data-store": "", onclick: store }, "Store…") : null,
        h("button", { type: "submit", class: "primary", "data-what-if": "" }, "What if"))));

  async function store() {
    const values = given();
    const sure = await confirmed({ title: "Store a real event?", action: "Store it", scope: "write",
      lines: [h("span", {}, "It becomes part of the history of ", data(params.user, 60), " and of every ranking from now on. An event cannot be taken back; only a whole user can be erased.")] });
    if (!sure) return;
    try {
      const answer = await call("POST", "/v1/events", { body: { events: [{ user_id: params.user, item_id: id, type: "click", features: values, request_id: requestId, position }] } });
      if (answer.rejected.length) throw Object.assign(new Error(answer.rejected[0].detail), { title: "The event was refused" });
      box.close();
      announce("The event is stored");
      stored();
    } catch (error) {
      fill(trouble, problemPanel(error));
    }
  }

  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  (fields[0]?.querySelector("input, select") ?? box.querySelector("[data-what-if]")).focus();
}
