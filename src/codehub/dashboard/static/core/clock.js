/** The server's time. A laptop's clock may be minutes off, and "stops in 2 min" must not be. */

let ahead = 0;
const GRANULARITY = 1_500; // the header has whole seconds, and an answer takes its time

export function noteServerTime(date) {
  const said = Date.parse(date ?? "");
  if (Number.isNaN(said)) return;
  const difference = said + 500 - Date.now();
  if (Math.abs(difference - ahead) > GRANULARITY) ahead = difference;
}

/** The server's time in milliseconds. */
export const now = () => Date.now() + ahead;

const ticking = new Set();

/** Calls `act` each second while the page is seen; returns how to stop. */
export function everySecond(act) {
  ticking.add(act);
  return () => ticking.delete(act);
}

setInterval(() => {
  if (!document.hidden) for (const act of [...ticking]) act();
}, 1_000);
