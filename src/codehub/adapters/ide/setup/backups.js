// VS Code's backups of what is not saved. VS Code removes one after it has saved the file; a workspace that ends in between
// keeps it, and the file would open as one that was changed elsewhere.

const fs = require("node:fs");
const path = require("node:path");

// A backup begins with a line of the file's address, a space and what VS Code notes of it; the text follows.
function isSaved(backup) {
  if (!fs.lstatSync(backup).isFile()) return false;
  const bytes = fs.readFileSync(backup);
  const end = bytes.indexOf("\n");
  const address = bytes.subarray(0, end).toString().split(" ", 1)[0];
  const file = decodeURIComponent(new URL(address).pathname);
  const found = fs.statSync(file);
  return found.isFile() && found.size === bytes.length - end - 1 && fs.readFileSync(file).equals(bytes.subarray(end + 1));
}

function removeSaved(data) {
  const backups = path.join(data, "User", "Backups");
  for (const folder of fs.readdirSync(backups)) {
    const remote = path.join(backups, folder, "vscode-remote");
    for (const name of fs.existsSync(remote) ? fs.readdirSync(remote) : []) {
      const backup = path.join(remote, name);
      try {
        if (isSaved(backup)) fs.rmSync(backup);
      } catch {
        // no file any more, or no backup as we know them: VS Code's to decide
      }
    }
  }
}

module.exports = { removeSaved };
