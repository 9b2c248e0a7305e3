/** What the extension tells in VS Code's notifications, with a VS Code that writes down what it was asked to show. */

const assert = require("node:assert/strict");
const Module = require("node:module");
const test = require("node:test");

const LINK = "[Click](command:workbench.action.terminal.new)";
const STATE = {
  folder: "/people/ann/shop",
  steps: { clone: { status: "failed", reason: "other", subject: {}, message: "git could not clone it.", detail: `fatal: ${LINK}` } },
  ignored: [LINK],
  ports: [{ port: 3000, label: LINK }],
};

/** The parts of VS Code that are used before anything happens; `shown` gets each notification's text. */
function editor(shown, tunnels) {
  const show = async (text) => void shown.push(text);
  const listen = () => ({ dispose() {} });
  const uri = (path) => ({ path, with: ({ path: other }) => uri(other) });
  return {
    Uri: { parse: uri, joinPath: (base, name) => uri(`${base.path}/${name}`) },
    RelativePattern: class {},
    ProgressLocation: {},
    commands: { registerCommand: listen },
    env: { language: "en", uriScheme: "vscode", asExternalUri: async (place) => place },
    window: { showInformationMessage: show, showWarningMessage: show, showErrorMessage: show },
    workspace: {
      createFileSystemWatcher: () => ({ onDidCreate: listen, onDidChange: listen, dispose() {} }),
      fs: { readFile: async () => new TextEncoder().encode(JSON.stringify(STATE)) },
      onDidChangeTunnels: (heard) => ((tunnels.changed = heard), listen()),
      get tunnels() {
        return Promise.resolve(tunnels.open.map((port) => ({ remoteAddress: { port } })));
      },
    },
  };
}

test("text of others is no link in a notification", async () => {
  const shown = [];
  const tunnels = { open: [] };
  const load = Module._load;
  Module._load = (name, ...more) => (name === "vscode" ? editor(shown, tunnels) : load(name, ...more));
  globalThis.self = { origin: "https://hub.example.com" };
  globalThis.fetch = async () => ({ ok: false, status: 404 });
  const { activate } = require("../../src/codehub/adapters/ide/extension/extension.js");
  const known = new Map();
  await activate({
    globalState: { get: (key) => known.get(key), update: (key, value) => known.set(key, value) },
    globalStorageUri: editor(shown, tunnels).Uri.parse("/people/ann/.local/share/code-server/User/globalStorage/codehub.codehub"),
    subscriptions: [],
  });
  tunnels.open = [3000];
  await tunnels.changed();
  await new Promise(setImmediate);
  const said = "(Click)(command:workbench.action.terminal.new)";
  assert.equal(shown.length, 4, shown.join("\n"));
  for (const text of shown) assert.ok(text.includes(said) && !/[[\]]/.test(text), text);
});
