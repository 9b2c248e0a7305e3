// CodeHub inside VS Code: when this workspace sleeps, a warning before, everything saved before a stop, and what was
// typed brought back when neither could be; and how far the workspace is set up, with its repository.
//
// Runs in the browser, so it outlives the workspace. It asks nobody over the network: the front door's script in the same
// page (editor.js) tells it the state and does what it asks for.

const vscode = require("vscode");

const WRITE_MS = 100; // after the last key; what is typed in between is written with it
const LARGEST = 20 << 20;
const RECOVER_AGAIN_MS = [0, 2_000, 5_000, 15_000, 30_000]; // the page that was left may end slowly, and a save may fail

const TEXTS = {
  en: {
    sleeps: (time) => `Sleeps in ${time}`,
    stays: "Stays awake",
    idle: "If nobody works in it until then. Everything is saved before.",
    lease_ended: "It was asked to be kept alive until then. Everything is saved before.",
    max_lifetime: "The longest time that a workspace may run is over then. Everything is saved before.",
    warn: (name, time) => `${name} goes to sleep in ${time}, because nobody has worked in it for a while.`,
    keep: "Keep Working",
    keepFor: "Keep alive for how long?",
    hours: (n) => (n === 1 ? "1 hour" : `${n} hours`),
    minutes: (n) => (n === 1 ? "1 minute" : `${n} minutes`),
    recovered: (names) => `Brought back what you had typed: ${names}`,
    conflict: (name) => `${name} was changed elsewhere. What you had typed in it is open beside it.`,
    compare: "Compare",
    notKept: "The workspace could not be kept awake. Try again, or use the dashboard.",
    cloning: ({ name }) => `Cloning ${name}`,
    installing: () => "Installing your dotfiles",
    preparing: () => "Preparing the repository",
    doing: { receiving: "receiving", resolving: "resolving", writing: "writing files" },
    failed: { clone: "The clone failed", dotfiles: "Your dotfiles failed", devcontainer: "devcontainer.json" },
    again: "Try Again",
    log: "Show Log",
    open: "Open",
    cloned: ({ name }) => `${name} is cloned.`,
    ignored: (names) => `devcontainer.json is honoured, except for: ${names}. The image and what runs beside it are the template's choice.`,
    ports: "Ports of this repository, once something listens there:",
    listens: (title, address) => `Something listens on port ${title}${address && `: ${address}`}`,
    noSetup: "This workspace was created without a repository or dotfiles, so there is no log of its setup.",
    reasons: {},
  },
  ko: {
    sleeps: (time) => `${time} 후 잠듦`,
    stays: "계속 켜 둠",
    idle: "그때까지 아무도 작업하지 않으면 잠듭니다. 그 전에 모두 저장됩니다.",
    lease_ended: "그때까지 켜 두도록 요청되었습니다. 그 전에 모두 저장됩니다.",
    max_lifetime: "그때 워크스페이스의 최대 실행 시간이 끝납니다. 그 전에 모두 저장됩니다.",
    warn: (name, time) => `한동안 작업이 없어 ${name} 워크스페이스가 ${time} 후 잠듭니다.`,
    keep: "계속 작업하기",
    keepFor: "얼마 동안 켜 둘까요?",
    hours: (n) => `${n}시간`,
    minutes: (n) => `${n}분`,
    recovered: (names) => `입력했던 내용을 되살렸습니다: ${names}`,
    conflict: (name) => `${name} 파일이 다른 곳에서 바뀌었습니다. 입력했던 내용은 옆에 열려 있습니다.`,
    compare: "비교",
    notKept: "워크스페이스를 켜 둘 수 없습니다. 다시 시도하거나 대시보드를 이용하세요.",
    cloning: ({ name }) => `${name} 복제 중`,
    installing: () => "dotfiles 설치 중",
    preparing: () => "저장소 준비 중",
    doing: { receiving: "받는 중", resolving: "정리 중", writing: "파일 쓰는 중" },
    failed: { clone: "복제하지 못했습니다", dotfiles: "dotfiles를 설치하지 못했습니다", devcontainer: "devcontainer.json" },
    again: "다시 시도",
    log: "로그 보기",
    open: "열기",
    cloned: ({ name }) => `${name} 저장소를 복제했습니다.`,
    ignored: (names) => `devcontainer.json에서 다음은 적용되지 않았습니다: ${names}. 이미지와 함께 실행되는 것은 템플릿이 정합니다.`,
    ports: "이 저장소의 포트(프로그램이 열면 접속할 수 있음):",
    listens: (title, address) => `포트 ${title}에서 프로그램이 열렸습니다${address && `: ${address}`}`,
    noSetup: "이 워크스페이스는 저장소나 dotfiles 없이 만들어져 설정 로그가 없습니다.",
    reasons: {
      ref: ({ ref, url }) => `${url}에 ${ref}라는 브랜치나 태그가 없습니다. 워크스페이스 설정에서 고친 뒤 멈췄다가 다시 시작하세요.`,
      space: () => "디스크가 가득 찼습니다. 공간을 비운 뒤 다시 시도하세요.",
      certificate: ({ host }) => `${host}의 인증서를 신뢰할 수 없습니다. 관리자에게 인증 기관을 추가해 달라고 하세요.`,
      host_key: ({ host }) => `${host}의 SSH 키가 알려진 것과 다릅니다. ~/.ssh/known_hosts를 고친 뒤 다시 시도하세요.`,
      credentials: ({ host }) => `${host}에 인증이 필요하거나 읽을 권한이 없습니다. 대시보드의 계정에서 ${host}의 토큰이나 SSH 키를 추가한 뒤 다시 시도하세요.`,
      host: ({ host }) => `이 워크스페이스에서 ${host}에 연결할 수 없습니다. 나중에 다시 시도하거나 워크스페이스 설정의 주소를 확인하세요.`,
      not_found: ({ url }) => `${url}에 저장소가 없거나 비공개입니다. 워크스페이스 설정의 주소를 확인하거나 계정에 인증 정보를 추가하세요.`,
      git_missing: () => "이 워크스페이스에는 git이 없습니다. 관리자에게 git이 있는 이미지를 요청하세요.",
      other: () => "git이 복제하지 못했습니다. 자세한 내용은 로그에 있습니다.",
      kept: ({ name }) => `${name}이(가) 홈에 이미 있어 복제하지 않았습니다. 내용은 그대로입니다.`,
      ended: () => "끝나기 전에 종료되었습니다. 워크스페이스를 멈췄다가 다시 시작하면 다시 시도합니다.",
      file: () => "파일이 길을 막고 있거나 쓸 수 없습니다.",
      dotfiles_taken: ({ url }) => `~/.dotfiles가 이미 있고 ${url}의 복제본이 아닙니다. 지운 뒤 다시 시도하세요.`,
      dotfiles_command: () => "dotfiles의 설치 명령이 실패했습니다. 자세한 내용은 로그에 있습니다.",
      devcontainer_file: () => "파일을 읽을 수 없습니다. 고친 뒤 다시 시도하세요.",
      devcontainer_settings: () => "설정을 쓸 수 없습니다.",
      extensions: ({ names }) => `설치하지 못한 확장: ${names}. 확장 갤러리에 연결할 수 있나요?`,
      command: ({ command }) => `${command} 명령이 실패했습니다. 자세한 내용은 로그에 있습니다.`,
    },
  },
};
const language = vscode.env.language !== "en" ? vscode.env.language : navigator.language;
const texts = language.startsWith("ko") ? TEXTS.ko : TEXTS.en;

function duration(seconds) {
  const minutes = Math.max(1, Math.round(seconds / 60));
  return minutes < 90 ? texts.minutes(minutes) : texts.hours(Math.round(minutes / 60));
}

// In a notification [text](command:…) is a link that runs a command, so brackets of a repository's, git's or a file's text
// do not stay brackets.
function notify(kind, text, ...choices) {
  return vscode.window[`show${kind}Message`](text.replaceAll("[", "(").replaceAll("]", ")"), ...choices);
}

async function activate(context) {
  const place = basePath();
  const setup = new SetupNotices(context, place);
  const ports = new PortNotices(setup);
  context.subscriptions.push(setup, ports, vscode.commands.registerCommand("codehub.setupLog", () => setup.showLog()));
  setup.look();
  const base = await place;
  if (base === null) return;
  const channel = new BroadcastChannel(`codehub ${base}_codehub/`);
  const journal = await Journal.open(base);
  const sleep = new SleepStatus(channel);
  let phase = "running";
  channel.onmessage = async ({ data }) => {
    if (data.state) {
      sleep.hear(data.state);
      if (data.state.phase !== "running" && phase === "running") await vscode.workspace.saveAll(false);
      phase = data.state.phase;
    } else if (data.notKept) {
      notify("Warning", texts.notKept);
    } else if (data.write) {
      await Promise.all([journal.flush(), journal.rememberTabs()]);
      channel.postMessage({ written: true });
    }
  };
  const command = (name, run) => vscode.commands.registerCommand(`codehub.${name}`, run);
  context.subscriptions.push(
    sleep,
    journal,
    { dispose: () => channel.close() },
    command("keepWorking", () => channel.postMessage({ keep: 0 })),
    command("keepAlive", () => keepAlive(channel)),
    command("openDashboard", () => sleep.openDashboard("")),
    command("restorePoints", () => sleep.openDashboard("#restore-points")),
  );
  channel.postMessage({ hello: true });
  await journal.recover();
}

// Where VS Code's page is: below "/" of a host of its own, or below the path of the workspace. Workspaces below paths share
// an origin and its storage, so without an answer nothing is done: one must never get what was typed in another.
async function basePath() {
  const uri = vscode.Uri.parse(`${vscode.env.uriScheme}://codehub.codehub/`);
  const callback = await vscode.env.asExternalUri(uri).then(({ path }) => path, () => "");
  const found = /^\/w\/[0-9a-f-]{36}\//.exec(callback)?.[0];
  if (found) return found;
  for (let wait = 1000; wait < 60_000; wait *= 2) {
    const answer = await fetch(`${self.origin}/_codehub/editor`).catch(() => null);
    if (answer?.ok) return "/"; // a workspace's own host
    if (answer?.status === 404) return null;
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
  return null;
}

async function keepAlive(channel) {
  const choices = [1, 2, 4, 8, 24].map((hours) => ({ label: texts.hours(hours), seconds: hours * 3600 }));
  const chosen = await vscode.window.showQuickPick(choices, { placeHolder: texts.keepFor });
  if (chosen) channel.postMessage({ keep: chosen.seconds });
}

// ── when it sleeps ──

class SleepStatus {
  constructor(channel) {
    this.channel = channel;
    this.item = vscode.window.createStatusBarItem("codehub.sleep", vscode.StatusBarAlignment.Right, 1000);
    this.item.name = "CodeHub";
    this.item.command = "codehub.keepAlive";
    this.until = null;
    this.warned = null; // of which warnings of this countdown were given
    this.timer = setInterval(() => this.show(), 20_000);
  }

  dispose() {
    clearInterval(this.timer);
    this.item.dispose();
  }

  hear(state) {
    this.state = state;
    const until = state.stops_in === null ? null : Date.now() + state.stops_in * 1000;
    if (until === null || this.until === null || until - this.until > 60_000) this.warned = null;
    this.until = until;
    this.show();
  }

  show() {
    if (!this.state) return;
    const left = this.until === null ? null : (this.until - Date.now()) / 1000;
    this.item.text = left === null ? `$(clock) ${texts.stays}` : `$(clock) ${texts.sleeps(duration(left))}`;
    this.item.tooltip = texts[this.state.reason] ?? "";
    const soon = left !== null && left < Math.max(0, ...this.state.warnings);
    this.item.backgroundColor = soon ? new vscode.ThemeColor("statusBarItem.warningBackground") : undefined;
    this.item.show();
    if (soon && this.state.phase === "running") this.warn(left);
  }

  async warn(left) {
    const stage = left < Math.min(...this.state.warnings) ? "last" : "first";
    if (this.warned === stage || this.warned === "last") return;
    this.warned = stage;
    const chosen = await notify("Warning", texts.warn(this.state.name, duration(left)), texts.keep);
    if (chosen) this.channel.postMessage({ keep: 0 });
  }

  openDashboard(part) {
    if (this.state) vscode.env.openExternal(vscode.Uri.parse(this.state.dashboard + part));
  }
}

// ── how far it is set up ──

// Tells what the setup program (main.js, beside the IDE's start) has written into setup.json below the home. It is read
// when it changes and not in between: looking is no work of a person.
class SetupNotices {
  constructor(context, place) {
    this.context = context;
    this.place = place;
    this.told = {}; // by step: what was last told of it
    this.progress = {}; // by step: how its progress is shown and ended
    // Below the home, where code-server keeps its data.
    const home = /^(.*)\/\.local\/share\/code-server\//.exec(context.globalStorageUri.path)?.[1];
    this.directory = home === undefined ? null : context.globalStorageUri.with({ path: `${home}/.local/state/codehub` });
    if (this.directory) {
      this.watcher = vscode.workspace.createFileSystemWatcher(new vscode.RelativePattern(this.directory, "setup.json"));
      for (const event of [this.watcher.onDidCreate, this.watcher.onDidChange]) event(() => this.look());
    }
  }

  dispose() {
    this.watcher?.dispose();
    for (const { end } of Object.values(this.progress)) end();
  }

  file(name) {
    return vscode.Uri.joinPath(this.directory, name);
  }

  async look() {
    if (!this.directory) return;
    const bytes = await vscode.workspace.fs.readFile(this.file("setup.json")).then(undefined, () => null);
    if (bytes) this.hear(JSON.parse(new TextDecoder().decode(bytes)));
  }

  hear(state) {
    this.state = state;
    for (const [name, step] of Object.entries(state.steps)) {
      if (step.status === "running") this.showProgress(name, step);
      else if (step.status !== "pending") this.endProgress(name);
      const before = this.told[name];
      this.told[name] = step.status;
      if (before === step.status) continue;
      if (step.status === "failed") this.showFailure(name, step);
      if (step.status === "done" && name === "clone") this.cloned(step, before !== undefined);
    }
    if (state.ignored.length) this.once("ignored", state.ignored, () => notify("Information", texts.ignored(state.ignored.join(", "))));
    if (state.ports.length) this.once("ports", state.ports, () => this.showPorts(state.ports));
  }

  // In this browser, until there is something else to tell.
  once(kind, what, tell) {
    const [key, value] = [`codehub.${kind} ${this.state.folder}`, JSON.stringify(what)];
    if (this.context.globalState.get(key) === value) return;
    this.context.globalState.update(key, value);
    tell();
  }

  showProgress(name, step) {
    if (!this.progress[name]) {
      const title = { clone: texts.cloning, dotfiles: texts.installing, devcontainer: texts.preparing }[name](step.subject ?? {});
      const location = name === "clone" ? vscode.ProgressLocation.Notification : vscode.ProgressLocation.Window;
      const shown = (this.progress[name] = { percent: 0 });
      vscode.window.withProgress({ location, title }, (progress) => {
        shown.report = (told) => progress.report(told);
        return new Promise((resolve) => (shown.end = resolve));
      });
    }
    const shown = this.progress[name];
    const increment = Math.max(0, (step.percent ?? 0) - shown.percent);
    shown.percent += increment;
    const doing = texts.doing[step.doing] ?? step.doing;
    shown.report?.({ increment, message: doing && (step.percent === undefined ? doing : `${doing}, ${step.percent} %`) });
  }

  endProgress(name) {
    this.progress[name]?.end?.();
    delete this.progress[name];
  }

  messageOf({ reason, subject, message }) {
    return texts.reasons[reason]?.(subject ?? {}) ?? message;
  }

  async showFailure(name, step) {
    const detail = step.detail && !step.message.includes(step.detail) ? ` (${step.detail})` : "";
    const choices = step.reason === "ended" ? [texts.log] : [texts.again, texts.log];
    const chosen = await notify("Error", `${texts.failed[name]}: ${this.messageOf(step)}${detail}`, ...choices);
    if (chosen === texts.again) await vscode.workspace.fs.writeFile(this.file("again"), new Uint8Array());
    if (chosen !== texts.log) return;
    await this.showLog();
    this.showFailure(name, step); // reading why is no decision yet
  }

  async showLog() {
    const log = this.directory && this.file("setup.log");
    const opened = log && (await vscode.workspace.openTextDocument(log).then(undefined, () => null));
    if (opened) await vscode.window.showTextDocument(opened, { preview: false });
    else notify("Information", texts.noSetup);
  }

  async cloned(step, sawIt) {
    if (step.reason === "kept") this.once("kept", step.subject, () => notify("Information", this.messageOf(step)));
    const isOpen = vscode.workspace.workspaceFolders?.some(({ uri }) => uri.path === this.state.folder);
    if (!sawIt || isOpen || step.reason === "kept") return;
    const chosen = await notify("Information", texts.cloned(step.subject), texts.open);
    if (chosen) vscode.commands.executeCommand("vscode.openFolder", this.directory.with({ path: this.state.folder }));
  }

  async showPorts(ports) {
    const named = ports.map(({ port }) => ({ port, title: this.portTitle(port) }));
    const said = await Promise.all(named.map(async ({ port, title }) => [title, await this.portAddress(port)].filter(Boolean).join(": ")));
    const canOpen = (await this.place) === "/";
    const chosen = await notify("Information", `${texts.ports} ${said.join(", ")}`, ...named.slice(0, canOpen ? 3 : 0));
    if (chosen) openPort(chosen.port);
  }

  // On a host of its own each port has a host beside it; below a path only the front door knows.
  async portAddress(port) {
    const { protocol, host } = new URL(self.origin);
    return (await this.place) === "/" ? `${protocol}//${port}--${host}/` : "";
  }

  portTitle(port) {
    const label = this.state?.ports.find((each) => each.port === port)?.label;
    return label ? `${label} (${port})` : `${port}`;
  }
}

// Tells of ports that a program of the workspace has opened, as VS Code itself finds them. By its own notification nobody
// would learn the address.
class PortNotices {
  constructor(setup) {
    this.setup = setup;
    this.known = null; // those of before are no news
    try {
      this.listener = vscode.workspace.onDidChangeTunnels(() => this.look());
      this.look();
    } catch {
      // a version of VS Code that does not let us know
    }
  }

  dispose() {
    this.listener?.dispose();
  }

  async look() {
    const ports = new Set((await vscode.workspace.tunnels).map(({ remoteAddress }) => remoteAddress.port));
    const before = this.known ?? ports;
    this.known = ports;
    for (const port of ports) if (!before.has(port)) this.tell(port);
  }

  async tell(port) {
    const address = await this.setup.portAddress(port);
    const chosen = await notify("Information", texts.listens(this.setup.portTitle(port), address), ...(address ? [texts.open] : []));
    if (chosen) openPort(port);
  }
}

function openPort(port) {
  return vscode.env.openExternal(vscode.Uri.parse(`http://localhost:${port}/`));
}

// ── what was typed ──

// Every editor that is not saved, in this browser's own storage: whatever ends the workspace, the network or the page, it
// is there when the workspace is opened here again. Kept per tab; a tab that is open holds a lock of its name.
class Journal {
  static async open(base) {
    const db = await request(
      Object.assign(indexedDB.open(`codehub ${base}`, 1), {
        onupgradeneeded: ({ target }) => {
          target.result.createObjectStore("unsaved", { keyPath: ["tab", "uri"] });
          target.result.createObjectStore("left"); // what a tab had open when it left
        },
      }),
    );
    const journal = new Journal(db);
    await journal.holdLock();
    return journal;
  }

  constructor(db) {
    this.db = db;
    this.tab = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
    this.known = new Map(); // by uri: hashes of what may be on disk
    this.pending = new Map(); // by uri: timer
    this.ended = () => {};
    this.listeners = [
      vscode.workspace.onDidChangeTextDocument(({ document }) => this.changed(document)),
      vscode.workspace.onWillSaveTextDocument(({ document }) => this.remember(document)),
      vscode.workspace.onDidSaveTextDocument((document) => this.saved(document)),
      vscode.workspace.onDidOpenTextDocument((document) => this.opened(document)),
      vscode.workspace.onDidCloseTextDocument((document) => this.closed(document)),
    ];
    for (const document of vscode.workspace.textDocuments) this.opened(document);
  }

  holdLock() {
    if (!navigator.locks) return Promise.resolve();
    return new Promise((held) => {
      navigator.locks.request(this.lockName(this.tab), () => {
        held();
        return new Promise((resolve) => (this.ended = resolve));
      });
    });
  }

  lockName(tab) {
    return `codehub tab ${tab}`;
  }

  dispose() {
    for (const listener of this.listeners) listener.dispose();
    this.ended();
  }

  concerns(document) {
    return ["file", "vscode-remote", "untitled"].includes(document.uri.scheme) && !document.isClosed;
  }

  opened(document) {
    if (!this.concerns(document)) return;
    if (document.isDirty) this.foundUnsaved(document);
    else this.known.set(document.uri.toString(), [hash(document.getText())]);
  }

  // Typed before we listened: what it was typed into is on disk.
  async foundUnsaved(document) {
    this.changed(document); // before the reading, which a workspace that is gone never answers
    const key = document.uri.toString();
    const text = document.isUntitled ? null : await onDisk(document);
    if (text === null || this.known.has(key)) return;
    this.known.set(key, [hash(text)]);
    this.changed(document);
  }

  remember(document) {
    const key = document.uri.toString();
    this.known.set(key, [...(this.known.get(key) ?? []).slice(-20), hash(document.getText())]);
  }

  changed(document) {
    if (!this.concerns(document)) return;
    const key = document.uri.toString();
    clearTimeout(this.pending.get(key));
    const wait = WRITE_MS + document.getText().length / 20_000;
    this.pending.set(key, setTimeout(() => this.keep(document), wait));
  }

  // A document that is said to be saved may not be: towards extensions VS Code calls it so after every save, whatever was
  // typed meanwhile. So what was changed is written in any case, and given up once it is seen to be on disk.
  async keep(document) {
    await this.write(document);
    if (document.isDirty) return;
    const text = document.getText();
    if (document.isUntitled || (await onDisk(document)) === text) this.isSaved(document, text);
  }

  saved(document) {
    const text = document.getText();
    if (this.known.get(document.uri.toString())?.at(-1) === hash(text)) this.isSaved(document, text);
    else this.changed(document); // typed while it was saved
  }

  isSaved(document, text) {
    const key = document.uri.toString();
    if (document.isDirty || document.getText() !== text) return;
    this.known.set(key, [hash(text)]);
    this.forget(key);
  }

  closed(document) {
    // An editor that was closed without saving was given up by the person.
    this.known.delete(document.uri.toString());
    return this.forget(document.uri.toString());
  }

  write(document) {
    const key = document.uri.toString();
    clearTimeout(this.pending.get(key));
    this.pending.delete(key);
    const text = document.getText();
    if (text.length > LARGEST) return Promise.resolve();
    const record = { tab: this.tab, uri: key, text, language: document.languageId, on_disk: this.known.get(key) ?? [], at: Date.now() };
    return request(this.store("readwrite").put(record));
  }

  forget(key) {
    clearTimeout(this.pending.get(key));
    this.pending.delete(key);
    return request(this.store("readwrite").delete([this.tab, key]));
  }

  store(mode, name = "unsaved") {
    return this.db.transaction(name, mode, { durability: "strict" }).objectStore(name);
  }

  // VS Code writes its own list every few seconds: what was opened just before the stop would be missing.
  rememberTabs() {
    const texts = vscode.window.tabGroups.all.flatMap((group) => group.tabs).filter((tab) => tab.input instanceof vscode.TabInputText);
    const uris = texts.map((tab) => tab.input.uri.toString());
    const active = vscode.window.tabGroups.activeTabGroup.activeTab?.input;
    const last = active instanceof vscode.TabInputText ? active.uri.toString() : uris.at(-1);
    return request(this.store("readwrite", "left").put({ uris, last, at: Date.now() }, "tabs"));
  }

  async reopenTabs() {
    const left = await request(this.store("readonly", "left").get("tabs"));
    if (!left) return;
    await request(this.store("readwrite", "left").delete("tabs"));
    const open = new Set(vscode.window.tabGroups.all.flatMap((group) => group.tabs).map((tab) => tab.input?.uri?.toString()));
    const isFile = (uri) => !uri.startsWith("untitled:");
    for (const uri of left.uris.filter((uri) => isFile(uri) && (!open.has(uri) || uri === left.last)).sort((a, b) => (a === left.last) - (b === left.last))) {
      await vscode.window.showTextDocument(vscode.Uri.parse(uri), { preview: false, preserveFocus: true }).then(undefined, () => {}); // it may be gone
    }
  }

  async flush() {
    const isUnsaved = (document) => document.isDirty || this.pending.has(document.uri.toString());
    const unsaved = vscode.workspace.textDocuments.filter((each) => isUnsaved(each) && this.concerns(each));
    await Promise.all(unsaved.map((document) => this.write(document)));
  }

  async recover() {
    await this.reopenTabs();
    for (const wait of RECOVER_AGAIN_MS) {
      await new Promise((resolve) => setTimeout(resolve, wait));
      if (await this.recoverOnce()) return;
    }
  }

  // What tabs that are gone had not saved. Whether nothing is left of other tabs, gone or open.
  async recoverOnce() {
    const records = await request(this.store("readonly").getAll());
    const held = navigator.locks ? (await navigator.locks.query()).held.map((lock) => lock.name) : [];
    const isOpen = ({ tab, at }) => (navigator.locks ? held.includes(this.lockName(tab)) : Date.now() - at < 60_000);
    const names = [];
    const others = records.filter((each) => each.tab !== this.tab).sort((a, b) => a.at - b.at);
    let left = others.length;
    for (const record of others.filter((each) => !isOpen(each))) {
      const name = await this.bringBack(record).catch(() => undefined);
      if (name === undefined) continue; // it stays for the next time
      if (name) names.push(name);
      await request(this.store("readwrite").delete([record.tab, record.uri]));
      left -= 1;
    }
    if (names.length) notify("Information", texts.recovered(names.join(", ")));
    return left === 0;
  }

  // The name of what was brought back; empty if it was there already.
  async bringBack({ uri, text, language, on_disk }) {
    const place = vscode.Uri.parse(uri);
    const name = place.path.split("/").pop();
    if (place.scheme === "untitled") {
      if (vscode.workspace.textDocuments.some((each) => each.isUntitled && each.getText() === text)) return "";
      await vscode.window.showTextDocument(await vscode.workspace.openTextDocument({ content: text, language }), { preview: false });
      return name;
    }
    let document;
    try {
      document = await vscode.workspace.openTextDocument(place);
    } catch (error) {
      if (error?.code !== "FileNotFound" && !/not.?found|nonexist/i.test(`${error}`)) throw error;
      await this.beside(text, language);
      return name;
    }
    if (document.getText() === text) {
      if (document.isDirty && !(await document.save())) throw new Error("it cannot be saved");
      return "";
    }
    if (isTypedOn(document.getText(), text)) return ""; // VS Code kept it too, and somebody has gone on
    if (document.isDirty || !on_disk.includes(hash(document.getText()))) {
      const beside = await this.beside(text, language);
      notify("Warning", texts.conflict(name), texts.compare).then((chosen) => {
        if (chosen) vscode.commands.executeCommand("vscode.diff", place, beside.uri, name);
      });
      return "";
    }
    const edit = new vscode.WorkspaceEdit();
    edit.replace(place, new vscode.Range(0, 0, document.lineCount, 0), text);
    if (!(await vscode.workspace.applyEdit(edit)) || !(await document.save())) throw new Error("it cannot be saved");
    await vscode.window.showTextDocument(document, { preview: false, preserveFocus: true });
    return name;
  }

  async beside(text, language) {
    const document = await vscode.workspace.openTextDocument({ content: text, language });
    await vscode.window.showTextDocument(document, { preview: false, preserveFocus: true, viewColumn: vscode.ViewColumn.Beside });
    return document;
  }
}

// Null if it cannot be told.
async function onDisk(document) {
  const bytes = await vscode.workspace.fs.readFile(document.uri).then(undefined, () => null);
  return bytes && new TextDecoder().decode(bytes);
}

function request(asked) {
  return new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
}

// Whether `text` is `before` with something inserted at one place.
function isTypedOn(text, before) {
  let begin = 0;
  while (begin < before.length && text[begin] === before[begin]) begin += 1;
  let end = 0;
  while (end < before.length - begin && text.at(-1 - end) === before.at(-1 - end)) end += 1;
  return begin + end === before.length;
}

// FNV-1a, twice, with the length: to tell versions of one file apart, not to withstand anybody.
function hash(text) {
  let a = 0x811c9dc5;
  let b = 0x01000193;
  for (let n = 0; n < text.length; n += 1) {
    a = Math.imul(a ^ text.charCodeAt(n), 0x01000193);
    b = Math.imul(b ^ text.charCodeAt(n), 0x85ebca6b);
  }
  return `${text.length}-${a >>> 0}-${b >>> 0}`;
}

module.exports = { activate };
