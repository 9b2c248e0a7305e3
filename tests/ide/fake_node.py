"""A node for tests that plays npm, node-gyp and code-server, and writes down how each was called.

`ROOT/bin/node` runs this with ROOT as first argument. The file `ROOT/trouble` names what goes wrong.
"""

import json
import os
import sys
import time
from pathlib import Path


def main(root: Path, words: list[str]) -> int:
    trouble = (root / "trouble").read_text() if (root / "trouble").exists() else ""
    program, *rest = (Path(words[0]).name, *words[1:])
    with (root / "calls").open("a") as calls:
        calls.write(json.dumps({"program": program, "words": rest, "env": dict(os.environ)}) + "\n")
    if program == "npm-cli.js":
        return npm(root, trouble, rest)
    if program == "-e":
        module = Path(rest[-1])
        return 1 if trouble == "no native modules" and not (module / "build").exists() else 0
    if program == "node-gyp.js":
        Path("build", "Release", "obj.target").mkdir(parents=True)
        return 0
    if program == "entry.js":
        print("1.2.3 abcdef with Code 1.9" if trouble != "does not run" else "Error: Cannot find module 'express'")
        return 1 if trouble == "does not run" else 0
    return 0


def npm(root: Path, trouble: str, words: list[str]) -> int:
    if trouble == "hangs" and words[0] == "install":
        (root / "hanging").write_text(str(os.getpid()))
        time.sleep(600)
    if trouble == "no network":
        print("npm error code ENOTFOUND", file=sys.stderr)
        print("npm error     at connect (node:net:1)\nnpm error", file=sys.stderr)
        print("npm error network request to the registry failed", file=sys.stderr)
        print("npm error A complete log of this run can be found in: nowhere", file=sys.stderr)
        return 1
    if words[0] == "pack":
        target = next(word.partition("=")[2] for word in words if word.startswith("--pack-destination="))
        Path(target, "code-server-1.2.3.tgz").write_bytes((root / "published.tgz").read_bytes())
        time.sleep(0.3 if trouble == "slow" else 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
