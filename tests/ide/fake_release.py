"""A tool chain and a published package that are small, so that a whole installation takes a moment."""

import base64
import hashlib
import json
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codehub.adapters.ide.cache import InstalledIde, Progress
from codehub.adapters.ide.install import Package, ensure_code_server
from codehub.adapters.ide.toolchain import Toolchain, node_platform
from tests.ide import fake_node

MODULES = "lib/vscode/node_modules"
KEPT = {
    "out/node/entry.js": "// code-server",
    "lib/vscode/extensions/package.json": "{}",
    "lib/vscode/out/vs/code/browser/workbench/workbench.html": "<html><head><title>Code</title></head></html>",
    "lib/vscode/extensions/copilot/package.json": "{}",
    f"{MODULES}/node-pty/index.js": "",
    f"{MODULES}/node-pty/prebuilds/{node_platform()}/pty.node": "",
    f"{MODULES}/@vscode/ripgrep-universal/bin/{node_platform()}/rg": "",
    f"{MODULES}/@vscode/spdlog/index.js": "",
    f"{MODULES}/@vscode/native-watchdog/index.js": "",
    f"{MODULES}/@parcel/watcher/index.js": "",
    f"{MODULES}/@microsoft/1ds-core-js/index.js": "",
    f"node_modules/argon2/prebuilds/{node_platform()}/argon2.node": "",
}
DROPPED = {
    "out/node/entry.js.map": "",
    "src/entry.ts": "",
    f"{MODULES}/@github/copilot-sdk/index.js": "",
    f"{MODULES}/@microsoft/mxc-sdk/index.js": "",
    f"{MODULES}/@vscode/windows-registry/index.js": "",
    f"{MODULES}/@vscode/spdlog/deps/spdlog.h": "",
    f"{MODULES}/node-pty/prebuilds/win32-x64/conpty.node": "",
    f"{MODULES}/@vscode/ripgrep-universal/bin/darwin-arm64/rg": "",
    "node_modules/argon2/prebuilds/win32-x64/argon2.node": "",
}


@dataclass(frozen=True)
class FakeRelease:
    root: Path
    cache: Path
    tools: Toolchain
    package: Package

    @classmethod
    def build(cls, directory: Path) -> "FakeRelease":
        root = directory / "tools"
        node = root / "bin" / "node"
        node.parent.mkdir(parents=True)
        node.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{fake_node.__file__}" "{root}" "$@"\n')
        node.chmod(0o755)
        package = Package("code-server", "1.2.3", publish(root))
        return cls(root, directory / "cache", Toolchain(root, "24.0.0"), package)

    async def ensure(self, progress: Progress = lambda text, fraction: None) -> InstalledIde:
        return await ensure_code_server(self.cache, progress, tools=self.tools, package=self.package)

    def trouble(self, what: str) -> None:
        (self.root / "trouble").write_text(what)

    def calls(self, program: str = "") -> list[dict[str, Any]]:
        path = self.root / "calls"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [call for call in found if program in call["program"]]

    def left(self) -> list[str]:
        return sorted(path.name for path in self.cache.iterdir())


def publish(root: Path) -> str:
    content = root / "published"
    for name, text in (KEPT | DROPPED).items():
        path = content / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    tarball = root / "published.tgz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(content / "package", "package")
    return base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
