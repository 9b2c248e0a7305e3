// The person's dotfiles: cloned once to ~/.dotfiles, brought up to date at later starts, and installed when they are new.

const { createHash } = require("node:crypto");
const fs = require("node:fs");
const path = require("node:path");
const { run, succeeded, ending } = require("./programs.js");
const { failure, gitClone, gitEnvironment, hostOf } = require("./clone.js");
const { directoryBelow } = require("./state.js");

const INSTALLERS = ["install.sh", "install", "bootstrap.sh", "bootstrap", "setup.sh", "setup", "script/bootstrap", "script/setup"];
const KEY = "dotfiles";

class Dotfiles {
  constructor(home, url, command, { state, memory, env }) {
    Object.assign(this, { home, url, command, state, memory, env });
    this.place = path.join(home, ".dotfiles");
    this.subject = { name: "dotfiles", url, ref: "", host: hostOf(url) };
  }

  async ensure() {
    this.state.step("dotfiles", "running", { subject: this.subject });
    const wrong = (await this.fetch()) ?? (await this.install());
    if (wrong) this.state.step("dotfiles", "failed", { subject: this.subject, ...wrong });
    else this.state.step("dotfiles", "done", { subject: this.subject });
  }

  // What is wrong, if anything is.
  async fetch() {
    if (!fs.lstatSync(this.place, { throwIfNoEntry: false })) return this.clone();
    const origin = await this.ask("config", "--get", "remote.origin.url");
    if (origin !== this.url) {
      return { reason: "dotfiles_taken", message: `~/.dotfiles is there and is not a clone of ${this.url}. Remove it, then try again.` };
    }
    if ((await this.ask("status", "--porcelain")) !== "") {
      this.state.log.write("dotfiles: ~/.dotfiles has changes of your own, so it is not brought up to date.");
      return null;
    }
    const pulled = await this.git("pull", "--ff-only", "--quiet");
    return succeeded(pulled) ? null : failure(pulled, this.subject);
  }

  async clone() {
    const stage = path.join(directoryBelow(this.home), "dotfiles");
    fs.rmSync(stage, { recursive: true, force: true });
    fs.mkdirSync(path.dirname(stage), { recursive: true });
    const result = await gitClone(this.state.log, this.url, "", stage, this.env);
    if (!succeeded(result)) return failure(result, this.subject);
    fs.renameSync(stage, this.place);
    return null;
  }

  // Again only if the dotfiles or the command are others than those that were installed. The command's text is not written
  // down: people put tokens into it.
  async install() {
    const command = this.command ? ["sh", "-c", this.command] : this.installer();
    if (!command) return null;
    const what = JSON.stringify([this.url, await this.ask("rev-parse", "HEAD"), command]);
    const installed = createHash("sha256").update(what).digest("hex");
    if (this.memory.of(KEY).installed === installed) return null;
    const name = this.command ? "the install command" : path.relative(this.place, command[0]);
    const result = await run(this.state.log, command, { cwd: this.place, env: this.env, shown: [`${name} of your dotfiles`] });
    if (!succeeded(result)) {
      const detail = (!this.command && result.lines.at(-1)) || ending(result); // a shell's last words may quote the command
      return { reason: "dotfiles_command", message: `${name[0].toUpperCase()}${name.slice(1)} of your dotfiles failed. The log says more.`, detail };
    }
    this.memory.note(KEY, { installed });
    return null;
  }

  installer() {
    const isProgram = (name) => {
      const found = fs.statSync(path.join(this.place, name), { throwIfNoEntry: false });
      return found?.isFile() && (found.mode & 0o111) !== 0;
    };
    const name = INSTALLERS.find(isProgram);
    return name ? [path.join(this.place, name)] : null;
  }

  git(...words) {
    return run(this.state.log, ["git", "-C", this.place, ...words], { cwd: this.home, env: gitEnvironment(this.env) });
  }

  async ask(...words) {
    const result = await this.git(...words);
    return succeeded(result) ? result.lines.join("\n") : null;
  }
}

module.exports = { Dotfiles };
