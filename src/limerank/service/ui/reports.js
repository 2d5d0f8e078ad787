// The report of the run that a bundle was exported from.

import { call, key, path } from "./api.js";
import { announce, h } from "./dom.js";

/** A link that opens it; with a key, which a link cannot carry, a button that saves it. */
export function reportLink(bundle, text = "Report") {
  if (!bundle.has_report) return h("span", { class: "faint", title: "Export the run again to have it in the bundle" }, `${text}: not in the bundle`);
  const address = path`v1/bundles/${bundle.id}/report`;
  if (!key()) return h("a", { href: new URL(address, new URL(".", document.baseURI)), target: "_blank", rel: "noopener noreferrer", "data-report": bundle.id }, text, h("span", { class: "unseen" }, " (opens in a new tab)"));
  return h("button", { type: "button", class: "as-link", "data-report": bundle.id, onclick: () => save(bundle.id, address) }, `${text} (save)`);
}

async function save(id, address) {
  const page = await call("GET", address);
  const file = URL.createObjectURL(new Blob([page], { type: "text/html" }));
  h("a", { href: file, download: `report-${id}.html` }).click();
  setTimeout(() => URL.revokeObjectURL(file), 10000);
  announce("The report was saved");
}
