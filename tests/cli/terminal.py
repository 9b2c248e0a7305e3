"""The person's terminal: runs `codehub …` in this process, as its program does, and keeps what was said."""

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from codehub.cli.main import app
from codehub.cli.output import run_and_explain


@dataclass(frozen=True)
class Said:
    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def lines(self) -> list[str]:
        """Of the complaint, each under our name."""
        assert self.out == ""
        lines = self.err.splitlines()
        assert all(line.startswith("codehub: ") for line in lines), self.err
        return [line.removeprefix("codehub: ") for line in lines]


class Terminal:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        self._patch = monkeypatch
        self.home = home
        for name in ("CODEHUB_URL", "CODEHUB_TOKEN", "CODEHUB_CONTEXT", "CODEHUB_CONFIG", "XDG_CONFIG_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.chdir(home)

    @property
    def config(self) -> Path:
        return self.home / ".config" / "codehub" / "contexts.json"

    def set(self, **environment: str) -> None:
        for name, value in environment.items():
            self._patch.setenv(name, value)

    def __call__(self, *words: str, stdin: str = "") -> Said:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with self._patch.context() as patch:
            patch.setattr(sys, "argv", ["codehub", *words])
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = run_and_explain(app)
            out.flush()
        assert isinstance(out.buffer, io.BytesIO)
        return Said(code, out.buffer.getvalue(), err.getvalue())

    def done(self, *words: str, stdin: str = "") -> str:
        said = self(*words, stdin=stdin)
        assert said.code == 0, said.err
        return said.out
