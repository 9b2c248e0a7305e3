// The repository that the workspace was created with, in a folder of its name below the home.
//
// git clones into a directory of ours; when it is whole, its files are moved into the folder one by one, .git last. So half a
// clone is never taken for a whole one, a move that was cut goes on at the next start, and a file that a person put there
// stays as it is.

const fs = require("node:fs");
const path = require("node:path");
const { run, succeeded, ending } = require("./programs.js");
const { directoryBelow } = require("./state.js");

// Dots in front are left out: a repository called .ssh must not become ~/.ssh. Nor does one get a name below the home where
// shells and node look for programs.
const LOOKED_INTO = ["bin", "node_modules"];

function nameOf(url) {
  const last = url.replace(/\/+$/, "").split(/[/:]/).pop().replace(/\.git$/, "");
  const name = last.replace(/^\.+/, "").replace(/[^\w.+@=,~-]/g, "-").slice(0, 100) || "repository";
  return LOOKED_INTO.includes(name) ? `${name}-repository` : name;
}

const hostOf = (url) => /^\w+:\/\/(?:[^/@]*@)?([^/]*)/.exec(url)?.[1] ?? /^(?:[^/@]*@)?([^/:]+):/.exec(url)?.[1] ?? "";

const isDirectory = (place) => fs.statSync(place, { throwIfNoEntry: false })?.isDirectory() ?? false;
const exists = (place) => fs.lstatSync(place, { throwIfNoEntry: false }) !== undefined;

// A clone by an earlier version of CodeHub, which remembered it beside VS Code's files.
const clonedBefore = (home) => exists(path.join(home, ".local", "share", "code-server", "cloned"));

// The folder to open, made if it is not there. The home, if the person has removed it or has something else of that name.
function folderToOpen(home, url, memory) {
  const folder = path.join(home, nameOf(url));
  const known = memory.of(url);
  if (!exists(folder) && !known.done && !clonedBefore(home)) {
    fs.mkdirSync(folder);
    memory.note(url, { made: true });
  }
  return isDirectory(folder) ? folder : home;
}

// What git is run with: it asks nobody, and finds credentials by the helpers that the environment names.
function gitEnvironment(environment) {
  const { GIT_ASKPASS, SSH_ASKPASS, ...rest } = environment;
  const ssh = "ssh -oBatchMode=yes -oStrictHostKeyChecking=accept-new";
  return { GIT_SSH_COMMAND: ssh, ...rest, GIT_TERMINAL_PROMPT: "0", LC_ALL: "C" };
}

const PHASES = [
  [/^Receiving objects:\s+(\d+)%/, 0, 80, "receiving"],
  [/^Resolving deltas:\s+(\d+)%/, 80, 95, "resolving"],
  [/^(?:Updating|Checking out) files:\s+(\d+)%/, 95, 100, "writing"],
];

function progressOf(line) {
  for (const [pattern, from, to, doing] of PHASES) {
    const found = pattern.exec(line);
    if (found) return [Math.round(from + ((to - from) * Number(found[1])) / 100), doing];
  }
  return null;
}

const PROGRESS = /^(?:Cloning into|Receiving|Resolving|Updating|Checking out|remote: (?:Enumerating|Counting|Compressing|Total))/;
const REASONS = [
  [/remote branch .* not found/i, "ref"],
  [/no space left|disk quota exceeded/i, "space"],
  [/certificate/i, "certificate"],
  [/host key verification failed/i, "host_key"],
  [/could not read (?:username|password)|authentication failed|permission denied|invalid credentials|error: 40[13]|access denied|terminal prompts disabled/i, "credentials"],
  [/could not resolve host|connection refused|timed out|network is unreachable|no route to host|failed to connect|connection reset/i, "host"],
  [/not found|does not exist|not appear to be a git repository|error: 404/i, "not_found"],
];

const ADVICE = {
  ref: ({ ref, url }) => `${url} has no branch or tag called ${ref}. Correct it in the workspace's settings, then stop and start the workspace.`,
  space: () => "The disk is full. Free some space, then try again.",
  certificate: ({ host }) => `The certificate of ${host} is not trusted here. Ask an administrator to add its certificate authority.`,
  host_key: ({ host }) => `The SSH key of ${host} is not the one that is known here. Correct ~/.ssh/known_hosts, then try again.`,
  credentials: ({ host }) => `${host} wants credentials, or does not let yours read it. Add a token or an SSH key for ${host} in the dashboard under Account, then try again.`,
  host: ({ host }) => `${host} cannot be reached from this workspace. Try again later, or check the address in the workspace's settings.`,
  not_found: ({ url }) => `There is no repository at ${url}, or it is private. Check the address in the workspace's settings, or add credentials for it under Account.`,
  git_missing: () => "There is no git in this workspace. Ask an administrator for an image that has it.",
  other: () => "git could not clone it. The log says more.",
};

function failure(result, subject) {
  const said = result.lines.filter((line) => !PROGRESS.test(line)).join("\n");
  const missing = result.error?.code === "ENOENT";
  const reason = missing ? "git_missing" : (REASONS.find(([pattern]) => pattern.test(said))?.[1] ?? "other");
  const detail = said.split("\n").find((line) => /^fatal|^error/i.test(line)) ?? result.lines.at(-1) ?? ending(result);
  return { reason, subject, message: ADVICE[reason](subject), detail };
}

const gitClone = (log, url, ref, target, env, onLine) =>
  run(log, ["git", "clone", "--progress", ...(ref ? [`--branch=${ref}`] : []), "--", url, target], { cwd: path.dirname(target), env: gitEnvironment(env), onLine });

class Repository {
  constructor(home, url, ref, { state, memory, env }) {
    Object.assign(this, { home, url, ref, state, memory, env });
    this.name = nameOf(url);
    this.folder = path.join(home, this.name);
    this.subject = { name: this.name, url, ref, host: hostOf(url) };
    this.stage = path.join(directoryBelow(home), "clone");
    this.tree = path.join(this.stage, "tree");
    this.whole = path.join(this.stage, "whole"); // names the repository whose clone was ready to be moved
  }

  // Whether the folder holds what we have cloned.
  async ensure() {
    if (this.memory.of(this.url).done) return this.done();
    if (clonedBefore(this.home)) {
      this.memory.note(this.url, { done: true, ran: ["onCreateCommand", "updateContentCommand", "postCreateCommand"] });
      return this.done();
    }
    if (exists(this.folder) && !isDirectory(this.folder)) return this.keep();
    if (!this.isReadyToMove()) {
      if (this.isOfThePerson()) return this.keep();
      if (!(await this.clone())) return false;
    }
    if (exists(path.join(this.folder, ".git")) && exists(path.join(this.tree, ".git"))) return this.keep();
    move(this.tree, this.folder);
    this.memory.note(this.url, { done: true });
    fs.rmSync(this.stage, { recursive: true, force: true });
    return this.done();
  }

  done() {
    this.state.step("clone", "done", { subject: this.subject });
    return isDirectory(this.folder);
  }

  keep() {
    const message = `${this.name} was in the home already, so nothing was cloned: it is as you left it.`;
    this.state.step("clone", "done", { reason: "kept", subject: this.subject, message });
    return false;
  }

  isReadyToMove() {
    try {
      return fs.readFileSync(this.whole, "utf8") === this.url;
    } catch {
      return false;
    }
  }

  // An empty folder is nobody's; one that we made may hold a few files of the person's, beside which the clone has room.
  isOfThePerson() {
    const found = isDirectory(this.folder) ? fs.readdirSync(this.folder) : [];
    return found.includes(".git") || (found.length > 0 && !this.memory.of(this.url).made);
  }

  async clone() {
    this.state.step("clone", "running", { subject: this.subject });
    fs.rmSync(this.stage, { recursive: true, force: true });
    fs.mkdirSync(this.stage, { recursive: true });
    const hear = (line) => {
      const found = progressOf(line);
      if (found) this.state.progress("clone", ...found);
    };
    const result = await gitClone(this.state.log, this.url, this.ref, this.tree, this.env, hear);
    if (succeeded(result)) fs.writeFileSync(this.whole, this.url);
    else {
      fs.rmSync(this.stage, { recursive: true, force: true });
      this.state.step("clone", "failed", failure(result, this.subject));
    }
    return succeeded(result);
  }
}

// Everything that is not there yet. What is there wins: git shows it as changed, and has the other in its history.
function move(from, to) {
  fs.mkdirSync(to, { recursive: true });
  const names = fs.readdirSync(from).sort((a, b) => (a === ".git") - (b === ".git"));
  for (const name of names) {
    const [source, target] = [path.join(from, name), path.join(to, name)];
    if (!exists(target)) fs.renameSync(source, target);
    else if (fs.lstatSync(source).isDirectory() && fs.lstatSync(target).isDirectory()) move(source, target);
  }
}

module.exports = { Repository, failure, folderToOpen, gitClone, gitEnvironment, hostOf, nameOf };
