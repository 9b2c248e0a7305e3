// The part of devcontainer.json that can be honoured in a workspace that is running: commands, variables, VS Code's
// extensions and settings, names of ports. What is left out is listed, so that the person can be told.

const fs = require("node:fs");
const path = require("node:path");
const jsonc = require("./jsonc.js");
const { run, succeeded, ending } = require("./programs.js");
const { replaceFile } = require("./state.js");

const PLACES = [".devcontainer/devcontainer.json", ".devcontainer.json"];
const LARGEST = 1 << 20;
const ONCE = ["onCreateCommand", "updateContentCommand", "postCreateCommand"];
const EACH_START = "postStartCommand";
const HONOURED = new Set(["$schema", "name", "containerEnv", "remoteEnv", "forwardPorts", "portsAttributes", "customizations", "waitFor", ...ONCE, EACH_START]);
const EXTENSION = /^[\w-]+\.[\w-]+(@[\w.+-]+)?$/;
const VARIABLE = /^[A-Za-z_][A-Za-z0-9_]*$/;

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const entriesOf = (value) => (isObject(value) ? Object.entries(value) : []);
const isText = (value) => typeof value === "string" && !value.includes("\0");

class Unusable extends Error {}

// The file's text; null if the repository has none. A link that leads out of the repository is not followed.
function read(folder) {
  const found = PLACES.map((name) => path.join(folder, name)).find((file) => fs.existsSync(file));
  if (!found) return null;
  const real = fs.realpathSync(found);
  const facts = fs.statSync(real);
  if (!real.startsWith(`${fs.realpathSync(folder)}${path.sep}`) || !facts.isFile()) throw new Unusable("it is no file of the repository");
  if (facts.size > LARGEST) throw new Unusable("it is larger than 1 MiB");
  return fs.readFileSync(real, "utf8");
}

function parsed(text) {
  let found;
  try {
    found = jsonc.parse(text);
  } catch (error) {
    throw new Unusable(error.message);
  }
  if (!isObject(found)) throw new Unusable("it is no JSON object");
  return found;
}

// ${containerWorkspaceFolder}, ${containerEnv:NAME} and their relatives; nothing of the person's own machine is known.
// standIn gives what stands for a variable: its value, or, where the text is written down, a reference. The environment
// holds the person's secrets, and whatever is written below the home is archived.
function filled(text, folder, standIn) {
  return text.replace(/\$\{(\w+)(?::(\w+)(?::([^}]*))?)?\}/g, (whole, kind, name, otherwise = "") => {
    if (kind === "containerWorkspaceFolder" || kind === "localWorkspaceFolder") return folder;
    if (kind === "containerWorkspaceFolderBasename" || kind === "localWorkspaceFolderBasename") return path.basename(folder);
    if (kind === "containerEnv" || kind === "remoteEnv") return standIn(name) ?? otherwise;
    return kind === "localEnv" ? otherwise : whole;
  });
}

const valueIn = (env) => (name) => (Object.hasOwn(env, name) ? env[name] : undefined);

// For a shell, which looks the variables up: their values are neither in its arguments nor in its messages.
function shellText(text, folder, env) {
  let quote = "";
  const reference = (name) => {
    if (!VARIABLE.test(name) || !Object.hasOwn(env, name)) return undefined;
    return quote === "'" ? `'"\${${name}}"'` : `\${${name}}`;
  };
  return text.replace(/\\["'\\]|["']|\$\{\w+(?::\w+(?::[^}]*)?)?\}/g, (token) => {
    if (token.startsWith("$")) return filled(token, folder, reference);
    quote = quoteAfter(quote, token);
    return token;
  });
}

function quoteAfter(quote, token) {
  const mark = token.at(-1);
  if (quote === mark && (token.length === 1 || mark === "'")) return ""; // between single quotes a backslash is a letter
  return quote === "" && token.length === 1 ? mark : quote;
}

// What devcontainer.json sets: the values, for commands, and what is written for terminals, where VS Code itself looks up
// ${env:NAME}.
function variables(config, folder, env) {
  const [values, written] = [{}, {}];
  const reference = (name) => (Object.hasOwn(written, name) ? written[name] : Object.hasOwn(env, name) ? `\${env:${name}}` : undefined);
  for (const [name, value] of [config.containerEnv, config.remoteEnv].flatMap(entriesOf)) {
    if (!VARIABLE.test(name) || !(value === null || isText(value))) continue;
    values[name] = value === null ? null : filled(value, folder, valueIn({ ...env, ...values }));
    written[name] = value === null ? null : filled(value, folder, reference);
  }
  return { values, written };
}

// The command lines of a lifecycle command, by name: text for a shell, a list of words, or several of these at once. Each
// is there as it is run, and as the file has it, for the log.
function commandLines(value, folder, env) {
  if (typeof value === "string") return isText(value) && value.trim() ? [["", ["sh", "-c", shellText(value, folder, env)], ["sh", "-c", value]]] : [];
  if (Array.isArray(value)) {
    if (!value.length) return [];
    if (!value.every(isText)) throw new Unusable("a command is text or a list of words");
    return [["", value.map((word) => filled(word, folder, valueIn(env))), value]];
  }
  if (!isObject(value)) throw new Unusable("a command is text, a list of words, or an object of these");
  return Object.entries(value).flatMap(([name, inner]) => {
    if (isObject(inner)) throw new Unusable("a command is text or a list of words");
    return commandLines(inner, folder, env).map(([, ...line]) => [name, ...line]);
  });
}

function ignoredIn(config) {
  const others = Object.keys(config).filter((name) => !HONOURED.has(name));
  const tools = entriesOf(config.customizations).flatMap(([name, value]) =>
    name === "vscode" ? Object.keys(isObject(value) ? value : {}).filter((key) => !["extensions", "settings"].includes(key)).map((key) => `vscode.${key}`) : [name],
  );
  const ports = list(config.forwardPorts).filter((port) => portOf(port) === null).map((port) => `forwardPorts ${String(port)}`);
  return [...others, ...tools.map((name) => `customizations.${name}`), ...ports].slice(0, 50).map((name) => name.slice(0, 100));
}

const list = (value) => (Array.isArray(value) ? value : []);

function portOf(value) {
  const number = typeof value === "number" ? value : Number(/^(?:localhost|127\.0\.0\.1):(\d+)$/.exec(String(value))?.[1]);
  return Number.isInteger(number) && number > 0 && number < 65536 ? number : null;
}

function portsIn(config) {
  const attributes = isObject(config.portsAttributes) ? config.portsAttributes : {};
  const labelOf = (port) => {
    const label = Object.hasOwn(attributes, port) && isObject(attributes[port]) ? attributes[port].label : "";
    return isText(label) ? label.slice(0, 100) : "";
  };
  const ports = new Set(list(config.forwardPorts).map(portOf).filter(Boolean));
  return [...ports].slice(0, 50).map((port) => ({ port, label: labelOf(port) }));
}

function settingsIn(config, given) {
  const settings = Object.fromEntries(entriesOf(config.customizations?.vscode?.settings));
  if (Object.keys(given).length) settings["terminal.integrated.env.linux"] = { ...settings["terminal.integrated.env.linux"], ...given };
  if (isObject(config.portsAttributes)) settings["remote.portsAttributes"] = config.portsAttributes;
  return settings;
}

// Settings of this machine, below those of the person. A key that the person has set there stays; what an earlier start set
// is taken back unless it was changed since. Returns what was not set.
function writeSettings(file, wanted, before) {
  const text = fs.existsSync(file) ? fs.readFileSync(file, "utf8") : "{}";
  let present;
  try {
    present = JSON.parse(text.trim() || "{}");
  } catch {
    return { ours: before, left: Object.keys(wanted) }; // rewriting it would lose the person's comments
  }
  if (!isObject(present)) return { ours: before, left: Object.keys(wanted) };
  const next = new Map(Object.entries(present).filter(([key, value]) => !(Object.hasOwn(before, key) && same(before[key], value))));
  const ours = Object.entries(wanted).filter(([key, value]) => !next.has(key) || same(next.get(key), value));
  for (const [key, value] of ours) next.set(key, value);
  const result = JSON.stringify(Object.fromEntries(next), null, 4);
  if (result !== text) replaceFile(file, result);
  return { ours: Object.fromEntries(ours), left: Object.keys(wanted).filter((key) => !ours.some(([mine]) => mine === key)) };
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

class DevContainer {
  constructor(folder, url, ide, { state, memory, env }) {
    Object.assign(this, { folder, url, ide, state, memory });
    this.outer = env;
    this.problems = [];
    this.started = false;
  }

  async ensure() {
    let config;
    try {
      const text = read(this.folder);
      if (text === null) return;
      config = parsed(text);
      this.checkCommands(config);
    } catch (error) {
      const message = `devcontainer.json cannot be used: ${error.message}. Correct it, then try again.`;
      this.state.step("devcontainer", "failed", { reason: "devcontainer_file", message, detail: error.message });
      return;
    }
    this.problems = [];
    this.state.set({ ignored: ignoredIn(config), ports: portsIn(config) });
    this.state.step("devcontainer", "running");
    const { values, written } = variables(config, this.folder, this.outer);
    this.env = Object.fromEntries(Object.entries({ ...this.outer, ...values }).filter(([, value]) => value !== null));
    this.applySettings(settingsIn(config, written));
    await Promise.all([this.installExtensions(config), this.runCommands(config)]);
    this.conclude();
  }

  checkCommands(config) {
    for (const name of [...ONCE, EACH_START]) if (config[name] !== undefined) commandLines(config[name], this.folder, {});
  }

  applySettings(wanted) {
    const file = path.join(this.ide.data, "Machine", "settings.json");
    try {
      const { ours, left } = writeSettings(file, wanted, this.memory.of(this.url).settings ?? {});
      this.memory.note(this.url, { settings: ours });
      if (left.length) this.state.log.write(`devcontainer: ${file} is yours for ${left.join(", ")}, which are left as they are.`);
    } catch (error) {
      this.problem("devcontainer_settings", {}, `Its settings could not be written: ${error.message}.`);
    }
  }

  async installExtensions(config) {
    const wanted = list(config.customizations?.vscode?.extensions).filter((name) => isText(name) && !name.startsWith("-"));
    const installed = this.memory.of(this.url).extensions ?? [];
    const failed = wanted.filter((name) => !EXTENSION.test(name));
    for (const name of wanted.filter((name) => EXTENSION.test(name) && !installed.includes(name))) {
      const result = await run(this.state.log, [...this.ide.command, "--install-extension", name], { cwd: this.folder, env: this.outer });
      if (succeeded(result)) installed.push(name);
      else failed.push(name);
    }
    this.memory.note(this.url, { extensions: installed });
    if (failed.length) {
      const names = failed.map((name) => name.slice(0, 100)).join(", ");
      this.problem("extensions", { names }, `Extensions that could not be installed: ${names}. Is the extension gallery reachable?`);
    }
  }

  async runCommands(config) {
    for (const name of ONCE) {
      const ran = this.memory.of(this.url).ran ?? [];
      if (config[name] === undefined || ran.includes(name)) continue;
      if (!(await this.runCommand(name, config[name]))) return;
      this.memory.note(this.url, { ran: [...ran, name] });
    }
    if (config[EACH_START] !== undefined && !this.started) this.started = await this.runCommand(EACH_START, config[EACH_START]);
  }

  async runCommand(name, value) {
    this.state.step("devcontainer", "running", { doing: name });
    const lines = commandLines(value, this.folder, this.env);
    const results = await Promise.all(lines.map(([, argv, shown]) => run(this.state.log, argv, { cwd: this.folder, env: this.env, shown })));
    const at = results.findIndex((result) => !succeeded(result));
    if (at === -1) return true;
    const which = lines[at][0] ? `${name} (${lines[at][0]})` : name;
    this.problem("command", { command: which }, `${which} of devcontainer.json failed. The log says more.`, results[at].lines.at(-1) || ending(results[at]));
    return false;
  }

  problem(reason, subject, message, detail = "") {
    this.problems.push({ reason, subject, message, detail });
  }

  // A command that failed comes before what is merely missed.
  conclude() {
    const first = this.problems.find(({ reason }) => reason === "command") ?? this.problems[0];
    if (!first) return this.state.step("devcontainer", "done");
    for (const { message } of this.problems) if (message !== first.message) this.state.log.write(`devcontainer: ${message}`);
    return this.state.step("devcontainer", "failed", first);
  }
}

module.exports = { DevContainer };
