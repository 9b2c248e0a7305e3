// What the setup has done, below the home. setup.json is read by our extension in VS Code and replaced as a whole;
// setup.log has the output of everything that was run; remembered.json is what must be done only once.

const fs = require("node:fs");
const path = require("node:path");

const LARGEST_LOG = 4 << 20;
const WRITE_MS = 250;

const directoryBelow = (home) => path.join(home, ".local", "state", "codehub");

function readJson(file) {
  try {
    return JSON.parse(fs.readFileSync(file, "utf8"));
  } catch {
    return null;
  }
}

function replaceFile(file, text) {
  const next = `${file}.${process.pid}`;
  fs.mkdirSync(path.dirname(file), { recursive: true });
  fs.rmSync(next, { force: true }); // with whatever mode an earlier process left it
  fs.writeFileSync(next, text, { mode: 0o600 });
  fs.renameSync(next, file);
}

class State {
  constructor(home) {
    this.directory = directoryBelow(home);
    this.file = path.join(this.directory, "setup.json");
    this.again = path.join(this.directory, "again"); // whoever makes this file asks for another try
    this.log = new Log(path.join(this.directory, "setup.log"));
    this.told = { steps: {}, ignored: [], ports: [], notes: [], log: this.log.file, again: this.again };
    this.timer = null;
  }

  set(values) {
    Object.assign(this.told, values);
    this.write();
  }

  // status: pending, running, done or failed. reason is for programs, message for people; subject fills a translation.
  step(name, status, more = {}) {
    this.told.steps[name] = { status, ...more };
    if (more.message) this.log.write(`${name}: ${more.message}`);
    this.write();
  }

  // Often, so it is written with the next ones.
  progress(name, percent, doing) {
    Object.assign(this.told.steps[name], { percent, doing });
    this.timer ??= setTimeout(() => this.write(), WRITE_MS);
  }

  has(status) {
    return Object.values(this.told.steps).some((step) => step.status === status);
  }

  // A home that cannot be written must not end what can still be done in it.
  write() {
    clearTimeout(this.timer);
    this.timer = null;
    try {
      replaceFile(this.file, JSON.stringify(this.told));
    } catch (error) {
      console.error(`codehub: ${error.message}`);
    }
  }

  // Of a run that ended without a word: what it was doing did not come to an end.
  static endedEarly(home) {
    const state = new State(home);
    state.told = readJson(state.file) ?? state.told;
    for (const [name, step] of Object.entries(state.told.steps)) {
      if (step.status === "running" || step.status === "pending") {
        state.told.steps[name] = { status: "failed", reason: "ended", message: "It was ended before it was done. Stop and start the workspace to try again." };
      }
    }
    state.write();
  }
}

class Log {
  constructor(file) {
    this.file = file;
    this.room = LARGEST_LOG;
    this.descriptor = null;
  }

  open() {
    try {
      fs.mkdirSync(path.dirname(this.file), { recursive: true });
      this.descriptor = fs.openSync(this.file, "w", 0o600);
    } catch (error) {
      console.error(`codehub: ${error.message}`);
    }
  }

  write(line) {
    if (this.descriptor === null || this.room < 0) return;
    this.room -= Buffer.byteLength(line) + 1;
    const text = this.room < 0 ? "(there was more output, which is left out)" : line;
    try {
      fs.writeSync(this.descriptor, `${text}\n`);
    } catch {
      this.room = -1; // a full disk
    }
  }
}

// What was done in earlier starts, by the address of the repository.
class Memory {
  constructor(home) {
    this.file = path.join(directoryBelow(home), "remembered.json");
    this.known = readJson(this.file) ?? {};
  }

  of(key) {
    return Object.hasOwn(this.known, key) ? this.known[key] : {};
  }

  note(key, values) {
    this.known = { ...this.known, [key]: { ...this.of(key), ...values } };
    replaceFile(this.file, JSON.stringify(this.known));
  }
}

module.exports = { Memory, State, directoryBelow, readJson, replaceFile };
