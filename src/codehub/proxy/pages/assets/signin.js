// Signs in with a username and a password, then goes where the person wanted to go, if that is a path of this site.

import { localPath, platformPath } from "./local_path.js";

const page = document.getElementById("signin");
const part = (id) => document.getElementById(id);
const texts = JSON.parse(page.dataset.texts);
const root = page.dataset.root;
const [form, username, password, submit] = ["form", "username", "password", "submit"].map(part);
// Where workspaces have hosts of their own, nobody goes from here to a page of theirs within this origin.
const readPath = page.dataset.hosts === "true" ? platformPath : localPath;
const next = readPath(new URLSearchParams(location.search).get("next"));
let busy = false;
let countdown = 0;

const provider = part("provider");
if (provider) provider.href = `${provider.getAttribute("href")}?next=${encodeURIComponent(next)}`;

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (busy) return;
  const missing = [username, password].filter((field) => !field.value);
  mark(missing);
  if (missing.length) {
    note(texts.missing);
    missing[0].focus();
    return;
  }
  hold(true);
  note("");
  if (await signIn()) location.assign(next);
  else hold(countdown > 0);
});

async function signIn() {
  let answer;
  try {
    answer = await fetch(`${root}api/v1/session`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json" },
      body: JSON.stringify({ username: username.value, password: password.value }),
      signal: AbortSignal.timeout(30_000),
    });
  } catch {
    note(texts.lost);
    return false;
  }
  if (answer.ok) return true;
  explain(answer);
  return false;
}

function explain(answer) {
  switch (answer.status) {
    case 401:
      note(texts.wrong);
      mark([username, password]);
      password.select();
      break;
    case 403:
      note(texts.refused);
      break;
    case 422:
      note(texts.missing);
      break;
    case 429:
      count(Math.max(1, Number.parseInt(answer.headers.get("Retry-After") ?? "", 10) || 5));
      break;
    default:
      note(texts.failed);
  }
}

function count(seconds) {
  const until = performance.now() + seconds * 1000;
  const say = () => {
    const left = Math.ceil((until - performance.now()) / 1000);
    if (left > 0) {
      note(texts.too_many.replace("{seconds}", String(left)));
      return;
    }
    clearInterval(countdown);
    countdown = 0;
    hold(false);
    note(texts.too_many_over);
  };
  countdown = setInterval(say, 500);
  say();
}

function mark(fields) {
  for (const field of [username, password]) {
    if (fields.includes(field)) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }
}

function hold(isHeld) {
  busy = isHeld;
  submit.textContent = isHeld && !countdown ? texts.busy : texts.submit;
  if (isHeld) submit.setAttribute("aria-disabled", "true");
  else submit.removeAttribute("aria-disabled");
}

function note(text) {
  if (part("note").textContent !== text) part("note").textContent = text;
  part("note").hidden = !text;
}

part("show").addEventListener("click", () => {
  const shown = password.type === "password";
  password.type = shown ? "text" : "password";
  part("show").setAttribute("aria-pressed", String(shown));
  part("show").setAttribute("aria-label", shown ? texts.hide : texts.show);
  password.focus();
});

for (const kind of ["keydown", "keyup", "mousedown"]) {
  password.addEventListener(kind, (event) => {
    part("caps").hidden = !event.getModifierState?.("CapsLock");
  });
}

// What a browser keeps of a page that is left should not hold a password.
addEventListener("pagehide", () => {
  password.value = "";
});
