// Runs programs of the setup. Their output goes to the log, and its last lines are kept for the message that a person gets.

const { spawn } = require("node:child_process");

const LAST_LINES = 12;
const LONGEST_LINE = 400;
const LAST_OUTPUT_MS = 250; // after the end of a program that left another one running with its output

// A password in an address is for nobody's log.
const withoutPasswords = (text) => text.replace(/(\w:\/\/[^/\s:@]*):[^/\s@]*@/g, "$1:***@");

// Ends when the program does; what it started in the background keeps its output, which is read for as long as it lives.
// What is shown stands in the log instead of the command line, which may hold secrets.
function run(log, argv, { cwd, env, shown = argv, onLine = () => {} }) {
  log.write(`$ ${withoutPasswords(shown.join(" "))}`);
  return new Promise((resolve) => {
    const lines = [];
    const child = spawn(argv[0], argv.slice(1), { cwd, env, stdio: ["ignore", "pipe", "pipe"] });
    const hear = (line) => {
      const said = withoutPasswords(line.slice(0, LONGEST_LINE)).trimEnd();
      onLine(said);
      lines.push(said);
      if (lines.length > LAST_LINES) lines.shift();
    };
    for (const stream of [child.stdout, child.stderr]) follow(stream, log, hear);
    const end = (code, signal, error) => {
      if (error) log.write(error.message);
      resolve({ code, signal, error, lines });
    };
    child.on("error", ({ code }) => end(null, null, { code, message: `${shown[0]} cannot be run: ${code}` }));
    child.on("close", (code, signal) => end(code, signal));
    child.on("exit", (code, signal) => setTimeout(() => end(code, signal), LAST_OUTPUT_MS).unref());
  });
}

// A progress line ends with a carriage return; only whole lines are logged.
function follow(stream, log, hear) {
  let unfinished = "";
  stream.setEncoding("utf8");
  stream.on("data", (chunk) => {
    const parts = (unfinished + chunk).split(/(\r\n|\n|\r)/);
    unfinished = parts.pop().slice(0, LONGEST_LINE);
    for (let at = 0; at < parts.length; at += 2) {
      hear(parts[at]);
      if (parts[at + 1] !== "\r") log.write(withoutPasswords(parts[at]));
    }
  });
  stream.on("end", () => {
    if (!unfinished) return;
    hear(unfinished);
    log.write(withoutPasswords(unfinished));
  });
}

const succeeded = ({ code }) => code === 0;

function ending({ code, signal, error }) {
  if (error) return error.message;
  return signal ? `ended by ${signal}` : `exit code ${code}`;
}

module.exports = { run, succeeded, ending };
