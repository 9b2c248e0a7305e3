"""What an installed code-server carries and nobody here runs: other platforms, sources, Copilot's agent host.

Together more than half of it. The agent host's packages go with the setting that hides what would use them.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

_MODULES = Path("lib", "vscode", "node_modules")
_PER_PLATFORM = (
    _MODULES / "@vscode" / "ripgrep-universal" / "bin",
    _MODULES / "node-pty" / "prebuilds",
    Path("node_modules", "argon2", "prebuilds"),
)
_UNUSED = (
    "src",
    "lib/vscode/node_modules/@github",
    "lib/vscode/node_modules/@microsoft/mxc-sdk",
    "lib/vscode/node_modules/@vscode/windows-*",
    "lib/vscode/node_modules/@vscode/spdlog/deps",
    "lib/vscode/node_modules/@vscode/spdlog/src",
    "lib/vscode/node_modules/@vscode/sqlite3/deps",
    "lib/vscode/node_modules/@vscode/sqlite3/src",
    "lib/vscode/node_modules/node-pty/deps",
    "lib/vscode/node_modules/node-pty/src",
    "lib/vscode/node_modules/node-pty/third_party",
    "lib/vscode/node_modules/**/build/Release/obj*",
    "**/*.map",
)


def slim(package: Path, platform: str) -> None:
    for path in list(unneeded(package, platform)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # or gone with its directory


def unneeded(package: Path, platform: str) -> Iterator[Path]:
    for pattern in _UNUSED:
        yield from package.glob(pattern)
    for place in _PER_PLATFORM:
        here = package / place
        # A platform they do not know keeps all: then something was compiled, or nothing fits anyway.
        if (here / platform).is_dir():
            yield from (path for path in here.iterdir() if path.name != platform)
