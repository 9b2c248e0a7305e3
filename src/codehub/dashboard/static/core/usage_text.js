/** What a workspace uses, in words and as points of a chart. Pure: words, language and time are arguments. */

import { bytes } from "./format.js";

const MINUTES = 60;
const MINUTE_MS = 60_000;

/** The share of the processors that it may use, from 0 to 100; of one processor if that is not known. Null: unknown. */
export function percent({ cpu, cpu_limit: limit }) {
  return cpu === null ? null : (100 * cpu) / (limit || 1);
}

export function percentText(value, language) {
  return new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: value < 10 ? 1 : 0 }).format(value / 100);
}

/** @returns {string[]} what is known of CPU, memory and disk; what is not is left out */
export function usageTexts(usage, { t, language }) {
  const of = (used, limit) => (limit ? t("usage.of", { used: bytes(used, language), limit: bytes(limit, language) }) : bytes(used, language));
  const cpu = percent(usage);
  const { memory_bytes: memory, memory_limit_bytes: memoryLimit, disk } = usage;
  return [
    cpu === null ? null : t("usage.cpu", { percent: percentText(Math.round(cpu), language) }),
    memory === null ? null : t("usage.memory", { used: of(memory, memoryLimit) }),
    disk === null || disk.used_bytes === null ? null : t("usage.disk", { used: of(disk.used_bytes, disk.limit_bytes) }),
  ].filter((text) => text !== null);
}

/**
 * The last hour, a point for each minute; null where nothing is known. A sample holds until the next should have come:
 * samples come by a clock of their own, and between two of them a minute may begin and end.
 * @param {{at: string}[]} samples oldest first
 * @param {(sample: Object) => number | null} value
 */
export function lastHour(samples, value, now) {
  const first = Math.floor(now / MINUTE_MS) - MINUTES + 1;
  const points = Array.from({ length: MINUTES }, (_, place) => ({ at: new Date((first + place) * MINUTE_MS).toISOString(), value: null }));
  const times = samples.map(({ at }) => Date.parse(at));
  const holds = Math.max(MINUTE_MS, Math.min(...times.slice(1).map((time, place) => time - times[place])));
  for (const [place, point] of points.entries()) {
    const begins = (first + place) * MINUTE_MS;
    const last = times.findLastIndex((time) => time < begins + MINUTE_MS);
    if (last >= 0 && times[last] > begins - (Number.isFinite(holds) ? holds : MINUTE_MS)) point.value = value(samples[last]);
  }
  return points;
}
