/** How long until it sleeps: a few sensible spans, "never", and what the installation does by itself. */

import { duration, t } from "../core/language.js";
import { select } from "./dialog.js";

const SPANS = [600, 1_800, 3_600, 3 * 3_600, 8 * 3_600, 86_400, 7 * 86_400];

export function ttlSelect(name, seconds) {
  const spans = seconds && !SPANS.includes(seconds) ? [...SPANS, seconds].sort((a, b) => a - b) : SPANS;
  const options = [["", t("ttl.default")], ...spans.map((span) => [String(span), duration(span)]), ["0", t("ttl.never")]];
  return select(name, options, seconds === null ? "" : String(seconds));
}

export const ttlValue = (text) => (text === "" || text === undefined ? null : Number(text));
