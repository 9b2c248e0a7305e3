/** Numbers, times and sizes as people of each language write them. Pure: the language is an argument. */

const UNITS = ["B", "KB", "MB", "GB", "TB", "PB"];

function unitOf(bytes) {
  let unit = 0;
  while (unit < UNITS.length - 1 && Math.abs(bytes) / 1000 ** unit >= 999.5) unit += 1;
  return unit;
}

function scaled(bytes, unit, language) {
  const value = bytes / 1000 ** unit;
  const digits = unit === 0 || value >= 99.95 ? 0 : 1;
  return new Intl.NumberFormat(language, { maximumFractionDigits: digits }).format(value);
}

/** 1234567 → "1.2 MB" */
export function bytes(count, language) {
  const unit = unitOf(count);
  return `${scaled(count, unit, language)} ${UNITS[unit]}`;
}

/** Two sizes in one unit: ["1.2", "3.4 GB"] */
export function bytesOf(count, total, language) {
  const unit = unitOf(Math.max(count, total));
  return [scaled(count, unit, language), `${scaled(total, unit, language)} ${UNITS[unit]}`];
}

export function number(count, language) {
  return new Intl.NumberFormat(language).format(count);
}

function counted(count, unit, language) {
  return new Intl.NumberFormat(language, { style: "unit", unit, unitDisplay: unit === "day" ? "long" : "short" }).format(count);
}

/** Seconds as one or two units: "40 sec", "8 min", "2 hr 5 min", "3 days" */
export function duration(seconds, language) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return counted(whole, "second", language);
  if (whole < 3_600) return counted(Math.round(whole / 60), "minute", language);
  const minutes = Math.round(whole / 60);
  if (minutes < 24 * 60) {
    const rest = minutes % 60;
    const hours = counted(Math.floor(minutes / 60), "hour", language);
    return rest ? `${hours} ${counted(rest, "minute", language)}` : hours;
  }
  return counted(Math.round(minutes / (24 * 60)), "day", language);
}

const STEPS = [
  ["year", 31_536_000],
  ["month", 2_592_000],
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
];

/** "3 minutes ago", "just now" */
export function ago(at, now, language) {
  const seconds = (Date.parse(at) - now) / 1_000;
  const [unit, size] = STEPS.find(([, length]) => Math.abs(seconds) >= length) ?? ["second", 1];
  const count = unit === "second" && Math.abs(seconds) < 10 ? 0 : Math.trunc(seconds / size);
  return new Intl.RelativeTimeFormat(language, { numeric: "auto" }).format(count, unit);
}

/** The time alone today, else with its day. */
export function clock(at, now, language) {
  const date = new Date(at);
  const today = new Date(now).toDateString() === date.toDateString();
  const parts = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  return new Intl.DateTimeFormat(language, today ? parts : { day: "numeric", month: "short", ...parts }).format(date);
}

export function moment(at, language) {
  const form = { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" };
  return new Intl.DateTimeFormat(language, form).format(new Date(at));
}

export function day(at, language) {
  return new Intl.DateTimeFormat(language, { weekday: "long", day: "numeric", month: "long" }).format(new Date(at));
}

export function date(at, language) {
  return new Intl.DateTimeFormat(language, { dateStyle: "medium" }).format(new Date(at));
}

/** A time to the second. */
export function time(at, language) {
  return new Intl.DateTimeFormat(language, { timeStyle: "medium", hourCycle: "h23" }).format(new Date(at));
}
