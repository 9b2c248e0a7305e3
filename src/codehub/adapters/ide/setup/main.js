// Sets a workspace up beside the start of its IDE: the repository it was created with, the person's dotfiles, and what the
// repository's devcontainer.json asks for. The IDE waits for none of it.
//
//   main.js folder HOME           prints the folder that the IDE opens, and makes it
//   main.js run HOME IDE...       does what is not done yet; after a failure it stays, and tries again when asked
//   main.js ended HOME            notes that a run was ended from outside
//   main.js backups DATA          removes VS Code's backups of what is saved
//
// IDE... is the command line of code-server. What is wanted is in CODEHUB_GIT_URL, CODEHUB_GIT_REF, CODEHUB_DOTFILES_URL and
// CODEHUB_DOTFILES_COMMAND. CODEHUB_DEVCONTAINER=off leaves devcontainer.json alone.

const fs = require("node:fs");
const { removeSaved } = require("./backups.js");
const { Repository, folderToOpen } = require("./clone.js");
const { DevContainer } = require("./devcontainer.js");
const { Dotfiles } = require("./dotfiles.js");
const { Memory, State } = require("./state.js");

const LOOK_MS = 1000;
const OPTIONS = ["--config", "--user-data-dir", "--extensions-dir"];

function ideOf(words) {
  const option = (name) => (words.includes(name) ? [name, words[words.indexOf(name) + 1]] : []);
  return { command: [...words.slice(0, 2), ...OPTIONS.flatMap(option)], data: option("--user-data-dir")[1] ?? "" };
}

class Setup {
  constructor(home, words, env) {
    const { CODEHUB_GIT_URL: url = "", CODEHUB_GIT_REF: ref = "", CODEHUB_DOTFILES_URL: dotfiles = "", CODEHUB_DOTFILES_COMMAND: command = "" } = env;
    this.state = new State(home);
    const parts = { state: this.state, memory: new Memory(home), env: { ...env, HOME: home } };
    this.repository = url ? new Repository(home, url, ref, parts) : null;
    this.dotfiles = dotfiles ? new Dotfiles(home, dotfiles, command, parts) : null;
    this.devcontainer = url && env.CODEHUB_DEVCONTAINER !== "off" ? new DevContainer(this.repository.folder, url, ideOf(words), parts) : null;
  }

  async run() {
    fs.rmSync(this.state.again, { force: true });
    this.state.log.open();
    if (this.repository) this.state.set({ folder: this.repository.folder });
    for (;;) {
      for (const [name, part] of [["clone", this.repository], ["dotfiles", this.dotfiles]]) {
        if (part) this.state.step(name, "pending", { subject: part.subject });
      }
      await this.once();
      if (!this.state.has("failed")) return;
      await this.asked();
    }
  }

  async once() {
    const [cloned] = await Promise.all([this.attempt("clone", this.repository), this.attempt("dotfiles", this.dotfiles)]);
    if (cloned === true) await this.attempt("devcontainer", this.devcontainer);
  }

  async attempt(name, part) {
    try {
      return await part?.ensure();
    } catch (error) {
      this.state.step(name, "failed", { reason: "file", subject: part.subject, message: `A file is in the way or cannot be written: ${error.message}`, detail: error.message });
      return false;
    }
  }

  // Until somebody asks for another try.
  asked() {
    return new Promise((resolve) => {
      const look = setInterval(() => {
        if (!fs.existsSync(this.state.again)) return;
        clearInterval(look);
        fs.rmSync(this.state.again, { force: true });
        resolve();
      }, LOOK_MS);
    });
  }
}

function main([verb, home, ...words]) {
  if (verb === "folder") {
    let folder = home;
    try {
      if (process.env.CODEHUB_GIT_URL) folder = folderToOpen(home, process.env.CODEHUB_GIT_URL, new Memory(home));
    } catch (error) {
      console.error(`codehub: ${error.message}`);
    }
    console.log(folder);
  } else if (verb === "ended") {
    State.endedEarly(home);
  } else if (verb === "backups") {
    removeSaved(home);
  } else {
    return new Setup(home, words, process.env).run();
  }
  return undefined;
}

main(process.argv.slice(2));
