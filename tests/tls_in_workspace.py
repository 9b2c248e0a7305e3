"""A TLS server inside a workspace, and every program that people fetch with asked whether it trusts it.

It runs inside, at localhost, because a workspace may reach no private address. It serves a git repository and a Python
package index, so that each program does what it is used for.
"""

import os
import subprocess
import zipfile
from pathlib import Path

from tests.certificates import Authority

_PROGRAMS = ("curl", "git", "python", "pip", "node")
TRUSTED = [f"{name} trusts it" for name in _PROGRAMS]
UNTRUSTED = [f"{name} refuses it" for name in _PROGRAMS]

_SERVER = """\
import http.server, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("tls/cert.pem", "tls/key.pem")
handler = lambda *given: http.server.SimpleHTTPRequestHandler(*given, directory="tls/site")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
_SCRIPT = """
cd "$HOME"
mkfifo tls/port
python3 tls/server.py > tls/port 2>/dev/null &
server=$!
trap 'kill $server' EXIT
read port < tls/port
site=https://localhost:$port
says() {{ name=$1; shift; if "$@" >/dev/null 2>&1; then echo "$name trusts it"; else echo "$name refuses it"; fi; }}
says curl curl --fail --silent $site/simple/
says git git ls-remote $site/repository.git
says python python3 -c "import urllib.request; urllib.request.urlopen('$site/simple/')"
says pip python3 -m pip download --no-deps --retries 0 --dest fetched -i $site/simple tiny
says node {node} -e "fetch('$site/simple/').then((found) => process.exit(found.ok ? 0 : 1), () => process.exit(1))"
"""


def tls_script(node: str) -> str:
    """The shell script that serves and asks; it prints a line for each program."""
    return _SCRIPT.format(node=node)


def put_tls_site(home: Path, authority: Authority) -> None:
    """Puts the server and what it serves into a home."""
    place = home / "tls"
    authority.write(place, "server")
    (place / "server.py").write_text(_SERVER)
    package = place / "site" / "simple" / "tiny"
    package.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", "--bare", str(place / "site" / "repository.git")], check=True)
    subprocess.run(["git", "-C", str(place / "site" / "repository.git"), "update-server-info"], check=True)
    _pack(package)
    owner = home.stat()
    for path in (place, *place.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)


def _pack(package: Path) -> None:
    """Puts an empty Python package and the page that names it into an index."""
    wheel = package / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("tiny.py", "")
        packed.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        packed.writestr(
            "tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr("tiny-1.dist-info/RECORD", "")
    (package / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
