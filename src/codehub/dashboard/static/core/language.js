/** English and Korean: the browser's choice, or the person's, kept in this browser. */

import EN from "../translations/en.js";
import KO from "../translations/ko.js";
import * as format from "./format.js";
import { now } from "./clock.js";
import { englishStates } from "./state_labels.js";

export const LANGUAGES = { en: "English", ko: "한국어" };
const WORDS = { en: { ...englishStates(), ...EN }, ko: KO };
const KEPT = "codehub.language";

function preferred() {
  let kept = null;
  try {
    kept = localStorage.getItem(KEPT);
  } catch {
    // storage is off: the browser's languages decide
  }
  const wanted = [kept, ...(navigator.languages ?? [])].filter(Boolean).map((tag) => tag.slice(0, 2).toLowerCase());
  return wanted.find((tag) => tag in WORDS) ?? "en";
}

export const language = preferred();
/** Dates and numbers as the person's own region writes them, if it speaks this language. */
export const locale = navigator.languages?.find((tag) => tag.slice(0, 2).toLowerCase() === language) ?? language;

export function chooseLanguage(chosen) {
  try {
    localStorage.setItem(KEPT, chosen);
  } catch {
    return;
  }
  location.reload();
}

/** @param {Object<string, any>} [values] for the {names} in the text */
export function t(key, values = {}) {
  const found = WORDS[language][key] ?? WORDS.en[key];
  if (found === undefined) return key;
  return found.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

export const knows = (key) => key in WORDS[language];

/** The words for a reason, which is a name from the ledger or of a failure. */
export function whyText(reason) {
  const key = [`why.${reason}`, `reason.${reason}.meaning`].find(knows);
  return key ? t(key) : "";
}

/** Who did it: a person's name, or what a part of ours is called. */
export function actorText(actor) {
  return knows(`actor.${actor}`) ? t(`actor.${actor}`) : actor;
}

/** What went wrong, in the person's language where we have the words. The server's own sentences are English. */
export function problemText(problem) {
  const key = `problem.${problem.code}`;
  return knows(key) ? t(key, { detail: problem.message }) : problem.message;
}

/**
 * What is wrong with a field, in the person's language where we have the words.
 * @param {{field: string, message: string, isTranslated?: boolean}} wrong `isTranslated`: a page found it, and says it in that language
 * @param {string} [words] whose words to take, where fields of the same name have different rules
 */
export function wrongText({ field, message, isTranslated }, words = field) {
  const key = `wrong.${words}`;
  return knows(key) && !isTranslated ? t(key, { message }) : message;
}

export const bytes = (count) => format.bytes(count, locale);
export const number = (count) => format.number(count, locale);
export const duration = (seconds) => format.duration(seconds, locale);
export const ago = (at) => format.ago(at, now(), locale);
export const clock = (at) => format.clock(at, now(), locale);
export const moment = (at) => format.moment(at, locale);
export const day = (at) => format.day(at, locale);
export const date = (at) => format.date(at, locale);
export const time = (at) => format.time(at, locale);
