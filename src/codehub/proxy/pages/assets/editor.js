// Loaded by VS Code's own page, before anything else of it. Follows the workspace's state, tells the CodeHub extension
// of it, and gives the window to the front door's page once there is nothing left behind the editor.
//
// One tab of a workspace asks, the one that was looked at last, and tells the others. An answer that does not come says
// nothing about the workspace: then VS Code reconnects by itself.

const base = new URL("_codehub/", document.baseURI).pathname;
const channel = new BroadcastChannel(`codehub ${base}`);
const LOCK = `codehub ${base}`;
const TIMEOUT = 45_000; // the server answers after 25 s
const AT_LEAST = 300; // between two questions
const TICK = 2_000;
const LEAVE = 700; // for the extension to write down what is not saved

let state = null;
let run = null; // of the editor that this page is
let leaving = false;

// ── asking ──

async function ask(path, options, signal) {
  const limit = AbortSignal.timeout(TIMEOUT);
  const answer = await fetch(base + path, {
    cache: "no-store",
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
    ...options,
  });
  const said = answer.ok ? await answer.json() : null;
  if (!said?.version) throw new Error(`${answer.status}`);
  return said;
}

function post(path) {
  return ask(path, { method: "POST", headers: { "Content-Type": "application/json" } });
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

let request = new AbortController(); // the question that is being asked

async function follow(signal) {
  for (let failures = 0; !signal.aborted; ) {
    const asked = performance.now();
    request = new AbortController();
    try {
      const seen = encodeURIComponent(state?.version ?? "");
      tell(await ask(`editor?seen=${seen}`, {}, AbortSignal.any([signal, request.signal])));
      failures = 0;
    } catch {
      if (!request.signal.aborted) failures += 1;
      if (failures) await pause(Math.min(250 * 2 ** failures, 8_000) * (0.75 + Math.random() / 2));
    }
    await pause(Math.max(0, AT_LEAST - (performance.now() - asked)));
  }
}

let holds = false; // whether it is this tab's turn to ask
let queued = new AbortController();
let eager = document.visibilityState === "visible";

// Whoever is looked at takes over from whoever was; whoever lost the turn queues up again.
async function takeTurns() {
  for (;;) {
    const turn = (queued = new AbortController());
    const options = eager ? { steal: true } : { signal: turn.signal };
    eager = false;
    const take = () => {
      holds = true;
      return follow(turn.signal);
    };
    await (navigator.locks ? navigator.locks.request(LOCK, options, take) : take()).catch(() => {});
    holds = false;
    turn.abort();
  }
}

// The person is back, or the machine is: what was asked before may never be answered.
function look() {
  if (document.visibilityState !== "visible") return;
  if (holds) request.abort();
  else {
    eager = true;
    queued.abort();
  }
}

for (const kind of ["focus", "online", "pageshow"]) addEventListener(kind, look);
for (const kind of ["visibilitychange", "resume"]) document.addEventListener(kind, look);
let tick = Date.now();
setInterval(() => {
  if (Date.now() - tick > 3 * TICK) look();
  tick = Date.now();
}, TICK);

// ── hearing ──

function tell(next) {
  channel.postMessage({ state: next });
  hear(next);
}

function hear(next) {
  state = { ...next, heard: Date.now() };
  run ??= next.phase === "running" ? next.run : null;
  if (next.phase === "running") {
    if (run === next.run) close();
    else leave(next); // another run of the workspace: this editor's other half is gone
  } else {
    show(next);
    if (next.phase === "asleep") leave(next);
  }
}

channel.addEventListener("message", ({ data }) => {
  if (data.state) hear(data.state);
  else if (data.hello && state) channel.postMessage({ state: aged(state) });
  else if (data.keep !== undefined && holds) keep(data.keep);
});

function keep(seconds) {
  post(seconds ? `keep?seconds=${seconds}` : "keep").then(tell, () => channel.postMessage({ notKept: true }));
}

function aged(old) {
  const passed = (Date.now() - old.heard) / 1000;
  return { ...old, stops_in: old.stops_in === null ? null : Math.max(0, old.stops_in - passed) };
}

// ── leaving ──

// The front door's page says what is the matter, and brings the editor back. VS Code would ask whether what is not saved
// may be lost: it is written down in this browser, and comes back with the editor.
async function leave(next) {
  if (leaving) return;
  leaving = true;
  show(next);
  const written = new Promise((resolve) => {
    channel.addEventListener("message", ({ data }) => data.written && resolve());
  });
  channel.postMessage({ write: true });
  await Promise.race([written, pause(LEAVE)]);
  // Not reloaded: the browser's reload button starts a workspace.
  const here = location.pathname + location.search;
  location.replace(`${base}asleep?to=${encodeURIComponent(`/${here.slice(base.length - "_codehub/".length)}`)}`);
}

addEventListener(
  "beforeunload",
  (event) => {
    if (leaving) event.stopImmediatePropagation();
  },
  { capture: true },
);

// ── the notice ──

let notice = null;

function show(next) {
  if (!document.body) return;
  notice ??= made();
  notice.querySelector("h1").textContent = next.title;
  notice.querySelector("p").textContent = next.text;
  if (!notice.open) notice.showModal();
}

function close() {
  notice?.close();
}

function made() {
  const dialog = document.createElement("dialog");
  dialog.id = "codehub-notice";
  dialog.setAttribute("aria-labelledby", "codehub-notice-title");
  const title = document.createElement("h1");
  title.id = "codehub-notice-title";
  dialog.append(title, document.createElement("p"));
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  // Keys are VS Code's shortcuts elsewhere; here they are nobody's.
  for (const kind of ["keydown", "keypress", "keyup"]) dialog.addEventListener(kind, (event) => event.stopPropagation());
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`
    #codehub-notice { max-width: 26rem; padding: 2rem 2.5rem; border: 1px solid light-dark(#d8dce2, #3a4150);
      border-radius: 14px; color-scheme: light dark; color: light-dark(#1d232c, #e8ebf0);
      background: light-dark(#fff, #20252e); font: 15px/1.5 system-ui, sans-serif; text-align: center; outline: none; }
    #codehub-notice h1 { margin: 0 0 0.5rem; font-size: 1.25rem; font-weight: 600; }
    #codehub-notice p { margin: 0; }
    #codehub-notice::backdrop { background: light-dark(rgb(245 246 248 / 0.85), rgb(18 21 27 / 0.85)); }
  `);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  document.body.append(dialog);
  return dialog;
}

takeTurns();
