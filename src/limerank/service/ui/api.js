// The public API, over fetch. The key lives in this tab's session storage and in a header: never in an address.

const KEY = "limerank-key";
const BASE = new URL(".", document.baseURI);

/** What the service refuses, as RFC 9457 has it; or that it cannot be reached. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `answered ${status}`);
    this.status = status;
    this.kind = String(body.type ?? "").replace("/problems/", "");
    this.title = body.title ?? "The service refused this";
    this.requestId = body.request_id ?? "";
    this.retryAfter = body.retry_after ?? null;
  }
}

let remembered = "";

/** The key that calls are made with; empty if there is none. */
export function key() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return remembered; // storage is forbidden: the key lives as long as the page
  }
}

/** Use another key, or none. */
export function useKey(text) {
  remembered = text;
  try {
    if (text) sessionStorage.setItem(KEY, text);
    else sessionStorage.removeItem(KEY);
  } catch {
    // as above
  }
}

/** Call an operation; answers are parsed JSON, or text where the service sends text. */
export async function call(method, path, { body, query, signal } = {}) {
  const address = new URL(path.replace(/^\//, ""), BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") address.searchParams.set(name, value);
  }
  const headers = { Accept: "application/json" };
  if (key()) headers.Authorization = `Bearer ${key()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(address, { method, headers, signal, cache: "no-store", credentials: "omit", referrerPolicy: "no-referrer", body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { title: "The service cannot be reached", detail: "It may have ended or be starting. Look at the terminal in which `limerank serve` runs, then try again.", type: "/problems/unreachable" });
  }
  const text = await response.text();
  const json = (response.headers.get("Content-Type") ?? "").includes("json");
  const answer = json && text ? JSON.parse(text) : text;
  if (response.ok) return answer;
  const told = json ? answer : { detail: `${method} ${path} answered ${response.status}` };
  const problem = new Problem(response.status, { ...told, retry_after: response.headers.get("Retry-After") });
  if (response.status === 401) dispatchEvent(new Event("limerank:key-needed"));
  throw problem;
}

/** A path whose parts are ids of logs, which may hold anything. */
export const path = (strings, ...ids) => strings.reduce((made, part, n) => made + part + (n < ids.length ? encodeURIComponent(ids[n]) : ""), "");

/** A sequence of calls of which only the newest matters: the one before is given up. */
export class Newest {
  constructor() {
    this.controller = null;
  }

  begin() {
    this.controller?.abort();
    this.controller = new AbortController();
    return this.controller.signal;
  }

  end() {
    this.controller?.abort();
    this.controller = null;
  }
}

/** Whether an error only says that nobody waits for the answer any more. */
export const givenUp = (error) => error?.name === "AbortError";
