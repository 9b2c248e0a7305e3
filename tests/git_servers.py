"""Git servers with private repositories: over https with a token, and over SSH with a key."""

import base64
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.certificates import Authority


def outward_address() -> str:
    """The address of this machine as others see it: a workspace with a network of its own reaches no loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("198.51.100.1", 9))  # nothing is sent
        address: str = asking.getsockname()[0]
    return address


def make_repository(place: Path) -> None:
    """A bare repository with one commit on `main`."""
    draft = place.with_suffix(".draft")
    named = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "init.defaultBranch=main")
    draft.mkdir(parents=True)
    (draft / "readme.md").write_text("# Private\n")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "first")):
        subprocess.run(["git", *named, *words], cwd=draft, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", draft, place], check=True)
    shutil.rmtree(draft)


def commits(place: Path) -> list[str]:
    """Who wrote which commit, newest first."""
    words = ["git", "-c", "safe.directory=*", "log", "--format=%an <%ae> %s", "main"]
    return subprocess.run(words, cwd=place, capture_output=True, text=True, check=True).stdout.splitlines()


@contextmanager
def https_server(root: Path, authority: Authority, host: str, username: str, token: str) -> Iterator[str]:
    """Serves the repositories below `root` to whoever has the token. Yields its host and port."""
    granted = "Basic " + base64.b64encode(f"{username}:{token}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the base's name
            if self.headers["Authorization"] != granted:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            asked = {
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers["Content-Type"] or "",
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers["Content-Encoding"] or "",
                "REMOTE_USER": username,
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "PATH": os.environ["PATH"],
            }
            words = ["git", "http-backend"]
            answer = subprocess.run(words, input=body, capture_output=True, check=True, env=asked).stdout
            head, _, content = answer.partition(b"\r\n\r\n")
            lines = [line.partition(": ") for line in head.decode().splitlines()]
            status = next((value for name, _, value in lines if name == "Status"), "200 OK")
            self.send_response(int(status.split()[0]))
            for name, _, value in lines:
                if name != "Status":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - as above

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the base's name

    certificate, key = authority.issue("git", host)
    (root / "both.pem").write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(root / "both.pem")
    server = ThreadingHTTPServer((host, 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def ssh_server(directory: Path, host: str, port: int, public_key: str) -> Iterator[None]:
    """OpenSSH's own server, as root, which lets in whoever has the key."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / "host_key"], check=True)
    (directory / "authorized_keys").write_text(f"{public_key}\n")
    settings = {
        "Port": port,
        "ListenAddress": host,
        "HostKey": directory / "host_key",
        "AuthorizedKeysFile": directory / "authorized_keys",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
    }
    (directory / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    Path("/run/sshd").mkdir(exist_ok=True)
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    assert program is not None, "openssh-server is not installed"
    with (directory / "sshd.log").open("wb") as log:
        process = subprocess.Popen([program, "-D", "-e", "-f", directory / "sshd_config"], stderr=log)
    try:
        _wait_until_it_listens(host, port, process)
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_until_it_listens(host: str, port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with suppress(ConnectionRefusedError):
            socket.create_connection((host, port)).close()
            return
        time.sleep(0.05)
