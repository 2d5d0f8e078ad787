// Numbers and times as people read them.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** 12,345 */
export const whole = (value) => (Number.isFinite(value) ? WHOLE.format(value) : "–");

/** A number with so many digits after the point, and a real minus. */
export function fixed(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  const text = value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return text.replace("-", "−");
}

/** +0.139, −0.020 */
export function signed(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  const text = fixed(Math.abs(value), digits);
  if (Number(Math.abs(value).toFixed(digits)) === 0) return `±${text}`;
  return (value < 0 ? "−" : "+") + text;
}

/** A probability, with four digits. */
export const probability = (value) => fixed(value, 4);

/** 12.3 % */
export const percent = (value, digits = 1) => (Number.isFinite(value) ? `${fixed(value * 100, digits)} %` : "–");

/** Milliseconds, with as many digits as matter. */
export function ms(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 10000) return `${fixed(value / 1000, 1)} s`;
  return `${fixed(value, value >= 100 ? 0 : value >= 10 ? 1 : 2)} ms`;
}

/** 12.3 MB */
export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  for (const [unit, size] of [["GB", 2 ** 30], ["MB", 2 ** 20], ["kB", 2 ** 10]]) {
    if (value >= size) return `${fixed(value / size, value >= 100 * size ? 0 : 1)} ${unit}`;
  }
  return `${whole(value)} bytes`;
}

/** How long: 42 s, 3 min, 5 h, 2 days. */
export function long(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 90) return `${whole(seconds)} s`;
  if (seconds < 5400) return `${whole(seconds / 60)} min`;
  if (seconds < 129600) return `${whole(seconds / 3600)} h`;
  return `${whole(seconds / 86400)} days`;
}

const DAY = new Intl.DateTimeFormat("en-CA", { dateStyle: "short", timeZone: "UTC" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium", timeZone: "UTC" });

/** A time in UTC: 2026-01-31 11:58:00; the same for whoever looks. */
export function time(value) {
  const date = value === null || value === undefined ? null : new Date(value);
  return date === null || Number.isNaN(date.getTime()) ? "no time" : `${DAY.format(date)} ${CLOCK.format(date)}`;
}

/** Only the time of the day, for live plots. */
export const clock = (value) => CLOCK.format(new Date(value));

/** "1 event", "2 events" */
export const count = (number, one, many = `${one}s`) => `${whole(number)} ${number === 1 ? one : many}`;
