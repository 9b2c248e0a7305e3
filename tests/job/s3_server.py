"""A real S3 server (`rclone serve s3`) that can be stopped and started again at the same address."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

BUCKET = "homes"
KEY_ID, SECRET = "codehub-test-key", "codehub-test-secret-1234"


class S3Server:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / BUCKET).mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "CODEHUB_S3_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def objects(self) -> list[str]:
        return sorted(
            str(path.relative_to(self.directory / BUCKET)) for path in self.directory.rglob("*") if path.is_file()
        )

    def start(self) -> None:
        # Its own configuration file, so that nobody's real remotes are read; plain logs go nowhere.
        self._process = subprocess.Popen(
            [
                Path(sys.executable).parent / "rclone",
                "serve",
                "s3",
                "--addr",
                f"127.0.0.1:{self.port}",
                "--auth-key",
                f"{KEY_ID},{SECRET}",
                self.directory,
            ],
            env={**os.environ, "RCLONE_CONFIG": os.devnull},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise TimeoutError("rclone serve s3 did not start")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
