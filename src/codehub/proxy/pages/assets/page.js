// Keeps the page true: asks for the workspace's state, shows what changed, and posts what the person wants.
// Everything that arrives is put in as text.

const page = document.getElementById("page");
const part = (id) => document.getElementById(id);
const texts = JSON.parse(page.dataset.texts);
const base = page.dataset.base;
let view = JSON.parse(page.dataset.view);
let seen = view.version; // of the workspace's state as it was last told; "" if it was not told yet

const SELDOM = 30_000;
const TIMEOUT_MS = 45_000; // the server answers a long question after 25 s
const STILL = 1_000; // after an answer that was no news
const AT_LEAST = 300; // between two questions
const MOVING = ["waiting", "running"];
const ROOM_TRIES = 5; // before a limit that nobody is about to lift is believed

// ── showing ──

function show(next) {
  const before = view;
  view = next;
  if (next.name === "running") reload();
  page.dataset.emblem = next.emblem;
  document.title = `${next.title} · CodeHub`;
  put("title", next.title);
  put("text", next.text);
  put("detail", next.detail);
  part("report").hidden = !next.report;
  part("report").querySelector("blockquote").textContent = next.report;
  if (changed(before.steps, next.steps)) showSteps(next.steps);
  showProgress(next.progress);
  if (changed(before.actions, next.actions)) showActions(next.actions);
  if (before.title !== next.title || before.text !== next.text) part("spoken").textContent = `${next.title}. ${next.text}`;
}

function changed(before, after) {
  return JSON.stringify(before) !== JSON.stringify(after);
}

function put(id, text) {
  part(id).textContent = text;
  part(id).hidden = !text;
}

function showSteps(steps) {
  part("steps").hidden = !steps.length;
  part("steps").replaceChildren(
    ...steps.map((step) => {
      const item = document.createElement("li");
      item.dataset.reached = step.reached;
      if (step.reached === "now") item.setAttribute("aria-current", "step");
      item.textContent = step.label;
      return item;
    }),
  );
}

function showProgress(progress) {
  const bar = part("bar");
  bar.hidden = !progress;
  if (!progress) return;
  const meter = bar.querySelector("progress");
  if (progress.fraction === null) meter.removeAttribute("value");
  else meter.value = progress.fraction;
  bar.querySelector("p").textContent = progress.text;
}

function showActions(actions) {
  const focused = document.activeElement?.dataset?.action;
  part("actions").hidden = !actions.length;
  part("actions").replaceChildren(...actions.map(button));
  if (!focused) return;
  const same = [...part("actions").children].find((each) => each.dataset.action === focused);
  (same ?? part("title")).focus();
}

function button(action) {
  const made = document.createElement(action.link === null ? "button" : "a");
  if (action.link === null) made.type = "button";
  else made.href = action.link;
  made.className = `button ${action.kind}`;
  made.dataset.action = action.id;
  made.textContent = action.label;
  return made;
}

function note(text) {
  if (part("note").textContent !== text) part("note").textContent = text;
  part("note").hidden = !text;
}

function lost(isLost) {
  page.toggleAttribute("data-lost", isLost);
  note(isLost ? texts.lost : "");
}

// ── one thing at a time ──

let current = new AbortController();

function begin() {
  current.abort();
  current = new AbortController();
  return current.signal;
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal.addEventListener("abort", stop, { once: true });
  });
}

function happens(name, signal) {
  return new Promise((resolve, reject) => {
    document.addEventListener(name, resolve, { once: true, signal });
    signal?.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}

function backOff(failures) {
  return Math.min(1000 * 2 ** failures, 15_000) * (0.75 + Math.random() / 2);
}

// Runs `work` until something else begins; that it was cut short is nobody's business.
function run(work) {
  const signal = begin();
  work(signal).catch((error) => {
    if (!signal.aborted) throw error;
  });
}

class Refused extends Error {}

async function ask(path, options, signal) {
  const answer = await fetch(base + path, {
    cache: "no-store",
    signal: AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]),
    ...options,
  });
  const said = await answer.json().catch(() => null);
  if (said && typeof said.title === "string" && Array.isArray(said.actions)) return said;
  if (answer.status >= 400 && answer.status < 500) throw new Refused(said?.detail ?? texts.failed);
  throw new Error(`${answer.status}`);
}

// Asks until there is an answer. A refusal is an answer too.
async function insist(path, options, signal) {
  for (let failures = 0; ; failures += 1) {
    try {
      const said = await ask(path, options, signal);
      lost(false);
      return said;
    } catch (error) {
      if (signal.aborted) throw error;
      if (error instanceof Refused) {
        lost(false);
        throw error;
      }
      lost(true);
      await pause(backOff(failures), signal);
    }
  }
}

// ── following ──

async function follow(signal) {
  for (;;) {
    if (view.settled && document.hidden) await happens("visibilitychange", signal);
    const asked = performance.now();
    try {
      const next = await insist(`state?seen=${encodeURIComponent(seen)}`, {}, signal);
      const same = next.version === seen;
      // A limit stays shown until there is news, and the state that is told first is none.
      const first = seen === "" && view.name === "limit";
      seen = next.version;
      if (!(first || same) || MOVING.includes(next.name)) show(next);
      if (next.name === "running") return;
      if (same) await pause(next.settled ? SELDOM : STILL, signal);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      note(error.message);
      await pause(SELDOM, signal);
    }
    await pause(Math.max(0, AT_LEAST - (performance.now() - asked)), signal);
  }
}

// What stands behind this address failed us. Looks now and then whether something else answers, while somebody looks.
async function probe(signal) {
  for (let wait = view.retry_seconds * 1000; ; wait = Math.min(wait * 1.3, 30_000)) {
    await pause(wait, signal);
    if (document.hidden) await happens("visibilitychange", signal);
    try {
      const answer = await fetch(location.href, {
        method: "HEAD",
        headers: { Accept: "text/html" },
        cache: "no-store",
        redirect: "manual",
        signal,
      });
      lost(false);
      if (answer.headers.get("CodeHub-Page") !== view.name) return reload();
    } catch (error) {
      if (signal.aborted) throw error;
      lost(true);
    }
  }
}

// Something else answers now. More often than a few times a minute, and it is a loop: it is slowed down.
function reload() {
  const now = Date.now();
  let recent = [];
  try {
    recent = JSON.parse(sessionStorage.getItem("codehub.reloads") ?? "[]").filter((at) => now - at < 60_000);
    sessionStorage.setItem("codehub.reloads", JSON.stringify([...recent, now]));
  } catch {
    // without storage it goes unslowed
  }
  const delay = recent.length < 2 ? 0 : Math.min(1000 * 2 ** (recent.length - 2), 15_000);
  setTimeout(() => location.reload(), delay);
}

// ── acting ──

// The front door reads heads, not bodies: what is to give way stands in the address.
function post(instead, signal) {
  const headers = { "Content-Type": "application/json", Accept: "application/json" };
  const address = instead === null ? "wake" : `wake?instead=${encodeURIComponent(instead)}`;
  return insist(address, { method: "POST", headers }, signal);
}

async function act(id, signal) {
  const instead = id.startsWith("instead:") ? id.slice("instead:".length) : null;
  hold(true);
  try {
    let answer = await post(instead, signal);
    if (instead !== null) answer = await makeRoom(answer, signal);
    show(answer);
    if (answer.name !== "limit") seen = answer.version; // a limit is not the workspace's state, which is as it was
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    note(error.message);
    const again = { id, label: texts.again, kind: "primary", link: null };
    if (!view.actions.some((action) => action.id === id)) show({ ...view, actions: [again, ...view.actions] });
  } finally {
    hold(false);
  }
  await follow(signal);
}

function hold(isHeld) {
  for (const each of part("actions").querySelectorAll("button")) {
    if (isHeld) each.setAttribute("aria-disabled", "true");
    else each.removeAttribute("aria-disabled");
  }
}

function waitsForRoom(answer, tries) {
  return answer.name === "making_room" || (answer.name === "limit" && (!answer.settled || tries < ROOM_TRIES));
}

// The other workspace was asked to stop. Its place is free when it has.
async function makeRoom(answer, signal) {
  for (let tries = 0; waitsForRoom(answer, tries); tries += 1) {
    const room = { title: texts.room_title, text: texts.room_text };
    const words = answer.name === "making_room" ? answer : { ...answer, ...room, name: "making_room" };
    show({ ...words, emblem: "busy", detail: "", report: "", progress: null, steps: [], actions: [] });
    await pause(1000, signal);
    answer = await post(null, signal);
  }
  return answer;
}

part("actions").addEventListener("click", (event) => {
  const chosen = event.target.closest("button[data-action]");
  if (!chosen || chosen.getAttribute("aria-disabled") === "true") return;
  if (chosen.dataset.action === "reload") location.reload();
  else run((signal) => act(chosen.dataset.action, signal));
});

// ── life ──

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && view.settled && view.retry_seconds === null && !busy()) run(follow);
});

addEventListener("online", () => {
  if (page.hasAttribute("data-lost") && view.retry_seconds === null && !busy()) run(follow);
});

function busy() {
  return view.name === "making_room" || part("actions").querySelector("[aria-disabled]") !== null;
}

// A page that comes back from the browser's memory tells old stories.
addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

// Where the browser does not say whether a person's act led here, what it calls a reload may be the page's own doing.
function mayWake() {
  return view.wakes && !(view.unless_reloaded && performance.getEntriesByType("navigation")[0]?.type !== "navigate");
}

if (view.wakes || view.name === "limit") seen = ""; // what is shown is not the workspace's state
if (document.prerendering) await happens("prerenderingchange");
if (view.name === "running") reload();
else if (view.retry_seconds !== null) run(probe);
else if (mayWake()) {
  while (document.hidden) await happens("visibilitychange");
  run((signal) => act("wake", signal));
} else {
  run(follow);
}
