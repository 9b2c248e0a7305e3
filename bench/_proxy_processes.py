"""The proxies that are compared: each one process, on a port of its own, before the same upstream."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

NGINX = """
daemon off; master_process off; worker_processes 1; pid {place}/nginx.pid; error_log {place}/error.log warn;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/fastcgi;
  uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
  upstream workspace {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://workspace; proxy_http_version 1.1; proxy_max_temp_file_size 0;
      proxy_set_header Host $http_host; proxy_set_header X-Forwarded-For $remote_addr;
      proxy_set_header X-Forwarded-Host $http_host; proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
      proxy_read_timeout 1h;
    }}
  }}
}}
"""
CHP = "configurable-http-proxy@5.3.0"
Sites = list[tuple[str, str]]
"""The hosts of workspaces, and the cookie that each lets in."""
ANYBODY: Sites = [("bench-0.localhost:8000", "__Host-codehub-visit=anybody")]


@dataclass(frozen=True)
class ProxyProcess:
    name: str
    port: int
    process: psutil.Process
    sites: Sites

    def cpu_seconds(self) -> float:
        times = [process.cpu_times() for process in self.processes()]
        return float(sum(each.user + each.system for each in times))

    def rss(self) -> int:
        return int(sum(process.memory_info().rss for process in self.processes()))

    def processes(self) -> list[psutil.Process]:
        """The process and those that it started: a wrapper's own figures say nothing."""
        return [self.process, *self.process.children(recursive=True)]


class ProxyProcesses:
    """Starts the proxies, and ends them all when the context does."""

    def __init__(self, stack: ExitStack, place: Path, upstream: int) -> None:
        self._stack = stack
        self._place = place
        self._upstream = upstream

    def ours(self) -> ProxyProcess:
        return self._ours("codehub", [])

    def ours_through_an_agent(self) -> ProxyProcess:
        """Our proxy as workspaces in containers are reached: with the agent as one more process between."""
        agent = self._stack.enter_context(running([sys.executable, "-m", "bench._proxy_agent"]))
        return self._ours("codehub-agent", (agent.stdout or sys.stdin.buffer).readline().decode().split())

    def _ours(self, name: str, agent: list[str]) -> ProxyProcess:
        command = [sys.executable, "-m", "bench._proxy_server", str(self._upstream), *agent]
        process = self._stack.enter_context(running(command))
        told = json.loads((process.stdout or sys.stdin.buffer).readline())
        return ProxyProcess(name, told["port"], psutil.Process(process.pid), told["sites"])

    def nginx(self) -> ProxyProcess | None:
        program = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
        if program is None:
            return None
        port = free_port()
        config = self._place / "nginx.conf"
        config.write_text(NGINX.format(place=self._place, upstream=self._upstream, port=port))
        process = self._stack.enter_context(running([program, "-c", str(config), "-p", str(self._place)]))
        return opened(ProxyProcess("nginx", port, psutil.Process(process.pid), ANYBODY))

    def configurable_http_proxy(self) -> ProxyProcess | None:
        program = installed_chp()
        if program is None:
            return None
        port, target = free_port(), f"http://127.0.0.1:{self._upstream}"
        command = [node(), str(program), "--ip", "127.0.0.1", "--port", str(port), "--default-target", target]
        command += ["--api-ip", "127.0.0.1", "--api-port", str(free_port()), "--log-level", "error"]
        environment = {**os.environ, "CONFIGPROXY_AUTH_TOKEN": "only-for-this-run"}
        process = self._stack.enter_context(running(command, environment))
        return opened(ProxyProcess("configurable-http-proxy", port, psutil.Process(process.pid), ANYBODY))


def node() -> str:
    return str(Path(sys.executable).with_name("node"))


def installed_chp() -> Path | None:
    """The path of configurable-http-proxy, fetched by npm into the cache on first use; None where it cannot be had."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "codehub-bench" / "chp"
    program = place / "node_modules" / "configurable-http-proxy" / "bin" / "configurable-http-proxy"
    if not program.exists():
        place.mkdir(parents=True, exist_ok=True)
        npm = [str(Path(sys.executable).with_name("npm")), "install", "--no-fund", "--no-audit"]
        try:
            subprocess.run([*npm, "--prefix", str(place), CHP], check=True, capture_output=True, timeout=120)
        except (OSError, subprocess.SubprocessError):
            return None
    return program if program.exists() else None


@contextmanager
def running(command: list[str], environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, env=environment)
    try:
        yield process
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            child.terminate()  # node is started by a wrapper, which would leave it behind
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stdin):
            if pipe:
                pipe.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def opened(proxy: ProxyProcess) -> ProxyProcess:
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", proxy.port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return proxy
    raise TimeoutError(f"{proxy.name} did not open its port")
