// The address is the state: #/view?name=value. Whoever gets it sees the same; nothing secret is ever in it.

/** The view and its parameters. */
export function here() {
  const [path, query = ""] = splitOnce(location.hash.replace(/^#\/?/, ""), "?");
  return { view: path || "try", params: Object.fromEntries(new URLSearchParams(query)) };
}

function splitOnce(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text, undefined] : [text.slice(0, at), text.slice(at + 1)];
}

/** The address of a view; parameters that are empty are left out. */
export function link(view, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) query.set(name, String(value));
  }
  const text = query.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

/** Go there: a new entry of the history unless it is the same address or only a correction. */
export function go(view, params, { replace = false } = {}) {
  const target = link(view, params);
  if (target === location.hash) return;
  if (replace) history.replaceState(null, "", target);
  else history.pushState(null, "", target);
  dispatchEvent(new Event("limerank:address"));
}

/** A parameter that holds JSON; something unreadable counts as nothing. */
export function parsed(text, otherwise) {
  try {
    return text ? JSON.parse(text) : otherwise;
  } catch {
    return otherwise;
  }
}

const SHARED = ["user", "anonymous", "steps", "task", "bundle"];

/** What views have in common: who is looked at, and what was changed. */
export function shared(params) {
  return Object.fromEntries(SHARED.filter((name) => params[name]).map((name) => [name, params[name]]));
}
