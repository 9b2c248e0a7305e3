"""A real Kubernetes of one node for the tests, on a Debian machine that has neither a cluster nor an image registry.

    python -m tests.kubernetes.cluster build    once per machine: ten to fifteen minutes, kept in the cache
    python -m tests.kubernetes.cluster up       start it; prints the line that sets KUBECONFIG
    python -m tests.kubernetes.cluster down     stop it and forget its state
    python -m tests.kubernetes.cluster status   nodes, pods, claims and Jobs
    python -m tests.kubernetes.cluster check    say why no cluster can run here; exit code 0 if one can
    python -m tests.kubernetes.cluster run …    build, up, a command with CODEHUB_TEST_KUBECONFIG set, down

Version 1.20.2 is built from Debian's source package and runs on the local Docker engine, whose images its pods use
(imagePullPolicy IfNotPresent or Never). It has RBAC, Services with names, and a default storage class of directories on
this machine; network policies are stored and not enforced. It takes root, and one Docker engine carries one cluster.
CODEHUB_KUBERNETES_CACHE and CODEHUB_KUBERNETES_RUN name other directories for what is built and for what runs;
CODEHUB_KUBERNETES_BUILD=0 builds nothing. `run` uses the cluster that CODEHUB_TEST_KUBECONFIG names, if it does.
"""

import contextlib
import ipaddress
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("CODEHUB_KUBERNETES_CACHE", "/var/cache/codehub-kubernetes"))
RUN = Path(os.environ.get("CODEHUB_KUBERNETES_RUN", "/var/tmp/codehub-kubernetes"))
BINARIES = CACHE / "bin"
KUBECONFIG = RUN / "kubeconfig"
PARTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
TOOLS = {
    "etcd": "etcd-server",
    "kubectl": "kubernetes-client",
    "conntrack": "conntrack",
    "socat": "socat",
    "dnsmasq": "dnsmasq-base",
    "iptables": "iptables",
    "openssl": "openssl",
    "gcc": "gcc",
}
"""Programs that a running cluster needs, and Debian's packages that have them."""
BUILD_PACKAGES = ("golang-go", "make", "rsync", "jq", "git", "gcc", "libc6-dev", "dpkg-dev")
VERSION = {
    "KUBE_GIT_VERSION": "v1.20.2",
    "KUBE_GIT_MAJOR": "1",
    "KUBE_GIT_MINOR": "20",
    "KUBE_GIT_COMMIT": "debian",
    "KUBE_GIT_TREE_STATE": "archive",
    "FORCE_HOST_GO": "y",
}
SCORES = (
    "pkg/kubelet/dockershim/docker_sandbox.go",
    "pkg/kubelet/qos/policy.go",
    "pkg/kubelet/dockershim/cm/container_manager_linux.go",
)
"""Sources that lower a process' OOM score, which a machine without CAP_SYS_RESOURCE does not allow."""
NODE = "localhost"
"""A name that every machine resolves: the API server reaches the kubelet by it."""
API, ETCD, ETCD_PEERS = "https://127.0.0.1:16443", "http://127.0.0.1:23790", "http://127.0.0.1:23800"
CGROUP = "/codehub-kubernetes"
CLAIMS = Path("/tmp/hostpath_pv")
"""Where the controller manager makes directories for claims; it knows no other place."""
PAUSE_IMAGE = "codehub-test-pause:latest"
PAUSE = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void leave(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) { signal(SIGINT, leave); signal(SIGTERM, leave); signal(SIGCHLD, reap); for (;;) pause(); }
"""
"""The program of a pod's sandbox, which does nothing until it is told to end."""
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "kubernetes.io/host-path",
}
READY_SECONDS = 120.0


class ClusterFailed(Exception):
    """What is wrong, and what to do."""


def run(*command: str, cwd: Path | None = None, text: str | None = None, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        input=text,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise ClusterFailed(f"`{' '.join(command)[:200]}` failed: {said}")
    return done.stdout


def kubectl(*words: str, text: str | None = None) -> str:
    return run("kubectl", *words, text=text, KUBECONFIG=str(KUBECONFIG))


# ── build ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_built() -> bool:
    return all(os.access(BINARIES / name, os.X_OK) for name in PARTS)


def why_not() -> str | None:
    """Why no cluster can run here; None if one can, once it is built."""
    if os.geteuid() != 0:
        return "a cluster takes root"
    if not is_built() and (shutil.which("apt-get") is None or os.environ.get("CODEHUB_KUBERNETES_BUILD") == "0"):
        return f"Kubernetes is not built in {BINARIES}: run `python -m tests.kubernetes.cluster build` on Debian"
    if subprocess.run(["docker", "version"], capture_output=True, check=False).returncode != 0:
        return "no Docker engine answers"
    if not is_up() and run("docker", "ps", "--quiet", "--filter", "name=k8s_POD"):
        return "another cluster's pods run on this Docker engine: name its kubeconfig in CODEHUB_TEST_KUBECONFIG"
    return None


def build() -> None:
    if is_built():
        return
    say("building Kubernetes 1.20.2 from Debian's source package (ten to fifteen minutes, once)")
    place = CACHE / "source"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    source = _fetch_source(place)
    for name in SCORES:
        path = source / name
        path.write_text(re.sub(r"= -99\d", "= 0", path.read_text()))
    run("make", "all", f"WHAT={' '.join(f'cmd/{name}' for name in PARTS)}", cwd=source, **VERSION)
    BINARIES.mkdir(exist_ok=True)
    for name in PARTS:
        shutil.copy2(next(source.glob(f"_output/local/bin/linux/*/{name}")), BINARIES)
    shutil.rmtree(place)


def _fetch_source(place: Path) -> Path:
    """The unpacked source of Debian's package. Where apt looks for sources is told for this one call alone."""
    found = Path("/etc/apt/sources.list.d/debian.sources").read_text()
    sources = place / "sources.sources"
    sources.write_text(re.sub(r"^Types: .*$", "Types: deb-src", found, flags=re.MULTILINE))
    apt = ("-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=-", "-o", f"Dir::State::lists={place}")
    _install(*BUILD_PACKAGES)
    run("apt-get", *apt, "-qq", "update")
    run("apt-get", *apt, "-qq", "source", "--download-only", "kubernetes", cwd=place)
    run("tar", "xzf", str(next(place.glob("kubernetes_*.orig.tar.gz"))), cwd=place)
    return next(path for path in place.glob("kubernetes-*") if path.is_dir())


def _install(*packages: str) -> None:
    if packages:
        words = ("install", "-y", "-qq", "--no-install-recommends")
        run("apt-get", *words, *packages, DEBIAN_FRONTEND="noninteractive")


# ── up ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def up() -> None:
    if not is_built():
        raise ClusterFailed("not built yet: run `python -m tests.kubernetes.cluster build`")
    _install(*(package for program, package in TOOLS.items() if shutil.which(program) is None))
    down()
    if reason := why_not():
        raise ClusterFailed(reason)
    for name in ("certificates", "log", "etcd", "kubelet"):
        (RUN / name).mkdir(parents=True)
    gateway = _gateway()
    _write_credentials()
    _make_pause_image()
    _start_control_plane(gateway)
    _start_node(gateway)
    _wait("kubelet", lambda: " Ready" in kubectl("get", "nodes"))


def _gateway() -> str:
    """The address of this machine on the engine's own network, where pods reach it."""
    (network,) = json.loads(run("docker", "network", "inspect", "bridge"))
    config = network["IPAM"]["Config"][0]
    return str(config.get("Gateway") or next(ipaddress.ip_network(config["Subnet"]).hosts()))


def _write_credentials() -> None:
    keys, token = RUN / "certificates", secrets.token_hex(16)
    run("openssl", "genrsa", "-out", str(keys / "accounts.key"), "2048")
    run("openssl", "rsa", "-in", str(keys / "accounts.key"), "-pubout", "-out", str(keys / "accounts.pub"))
    (RUN / "tokens.csv").write_text(f'{token},admin,1,"system:masters"\n')
    cluster = {"server": API, "insecure-skip-tls-verify": True}
    context = {"cluster": "local", "user": "admin", "namespace": "default"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "local", "context": context}],
        "current-context": "local",
    }
    KUBECONFIG.write_text(json.dumps(config))
    for path in (KUBECONFIG, RUN / "tokens.csv"):
        path.chmod(0o600)


def _make_pause_image() -> None:
    place = RUN / "pause"
    place.mkdir()
    (place / "pause.c").write_text(PAUSE)
    (place / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
    run("gcc", "-static", "-O2", "-o", "pause", "pause.c", cwd=place)
    run("docker", "build", "--quiet", "--tag", PAUSE_IMAGE, str(place))


def _start_control_plane(gateway: str) -> None:
    keys = RUN / "certificates"
    etcd = ("--listen-client-urls", ETCD, "--advertise-client-urls", ETCD, "--listen-peer-urls", ETCD_PEERS)
    launch("etcd", "etcd", "--data-dir", str(RUN / "etcd"), *etcd)
    launch(
        "apiserver",
        str(BINARIES / "kube-apiserver"),
        f"--etcd-servers={ETCD}",
        f"--cert-dir={keys}",
        f"--secure-port={API.rpartition(':')[2]}",
        "--bind-address=0.0.0.0",
        f"--advertise-address={gateway}",
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--service-account-key-file={keys / 'accounts.pub'}",
        f"--service-account-signing-key-file={keys / 'accounts.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=RBAC",
        "--anonymous-auth=false",
        f"--token-auth-file={RUN / 'tokens.csv'}",
        "--allow-privileged=true",
    )
    _wait("apiserver", lambda: kubectl("get", "--raw", "/readyz") == "ok")
    launch(
        "controller-manager",
        str(BINARIES / "kube-controller-manager"),
        f"--kubeconfig={KUBECONFIG}",
        f"--service-account-private-key-file={keys / 'accounts.key'}",
        f"--root-ca-file={keys / 'apiserver.crt'}",
        "--enable-hostpath-provisioner=true",
        "--leader-elect=false",
        "--port=0",
        "--secure-port=0",
    )
    scheduler = ("--leader-elect=false", "--port=0", "--secure-port=0")
    launch("scheduler", str(BINARIES / "kube-scheduler"), f"--kubeconfig={KUBECONFIG}", *scheduler)
    kubectl("apply", "--filename", "-", text=json.dumps(STORAGE_CLASS))


def _start_node(gateway: str) -> None:
    config = RUN / "kubelet.json"
    config.write_text(json.dumps(_kubelet_configuration(gateway)))
    launch(
        "kubelet",
        str(BINARIES / "kubelet"),
        f"--kubeconfig={KUBECONFIG}",
        f"--config={config}",
        f"--root-dir={RUN / 'kubelet'}",
        f"--hostname-override={NODE}",
        f"--node-ip={gateway}",
        f"--pod-infra-container-image={PAUSE_IMAGE}",
        f"--docker-endpoint={os.environ.get('DOCKER_HOST', 'unix:///var/run/docker.sock')}",
        "--container-runtime=docker",
        "--network-plugin=",
    )
    launch(
        "proxy",
        str(BINARIES / "kube-proxy"),
        f"--kubeconfig={KUBECONFIG}",
        f"--hostname-override={NODE}",
        "--proxy-mode=iptables",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--healthz-bind-address=127.0.0.1:10256",
        "--metrics-bind-address=127.0.0.1:10249",
    )
    (RUN / "hosts").touch()
    resolver = (
        "--keep-in-foreground",
        "--bind-interfaces",
        "--no-hosts",
        "--pid-file=",
        "--user=root",
        "--log-facility=-",
    )
    names = (f"--listen-address={gateway}", f"--addn-hosts={RUN / 'hosts'}", "--local=/cluster.local/")
    pid = launch("dns", "dnsmasq", *resolver, *names)
    launch("attendant", sys.executable, "-m", "tests.kubernetes.cluster", "attend", str(pid))


def _kubelet_configuration(gateway: str) -> dict[str, Any]:
    driver = run("docker", "info", "--format", "{{.CgroupDriver}}").strip()
    ours = {"cgroupRoot": CGROUP} if driver == "cgroupfs" else {}
    for hierarchy in _cgroups() if ours else ():
        hierarchy.mkdir(exist_ok=True)
        _allow_processes(hierarchy)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": "127.0.0.1",
        "healthzBindAddress": "127.0.0.1",
        "cgroupDriver": driver,
        "failSwapOn": False,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "enforceNodeAllocatable": [],
        "clusterDNS": [gateway],
        "clusterDomain": "cluster.local",
        **ours,
    }


def _cgroups() -> list[Path]:
    """Our own part of each hierarchy, so that this kubelet takes no other's pods for orphans."""
    hierarchies = [path for path in Path("/sys/fs/cgroup").iterdir() if path.is_dir() and (path / "tasks").exists()]
    return [path / CGROUP.strip("/") for path in hierarchies]


def _allow_processes(group: Path) -> None:
    """A new group has the weight of one process, and in the first version's cpuset no processor and no memory."""
    if (group / "cpu.shares").exists():
        (group / "cpu.shares").write_text(str(1024 * (os.cpu_count() or 1)))
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (group / name).exists() and not (group / name).read_text().strip():
            (group / name).write_text((group.parent / name).read_text())


def launch(name: str, *command: str) -> int:
    with (RUN / "log" / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    (RUN / f"{name}.pid").write_text(str(process.pid))
    return process.pid


def _wait(part: str, ready: Callable[[], bool]) -> None:
    log, deadline = RUN / "log" / f"{part}.log", time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(ClusterFailed):
            if ready():
                return
        if _pid(part) is None:
            raise ClusterFailed(f"{part} has ended: {log.read_text().strip()[-500:]}")
        time.sleep(0.5)
    raise ClusterFailed(f"{part} did not become ready in {READY_SECONDS:.0f} s: see {log}")


# ── what a cloud would do ────────────────────────────────────────────────────────────────────────────────────────────


def attend(resolver: int) -> None:
    """Opens the directories of claims, and tells the resolver the names of Services, while the resolver runs."""
    told, next_names = "", 0.0
    while _is_alive(resolver):
        _open_claims()
        if time.monotonic() >= next_names:
            told, next_names = _tell_names(resolver, told), time.monotonic() + 2
        time.sleep(0.05)


def _open_claims() -> None:
    """The directory of a claim is made for root alone, and nothing gives it to a pod's user: all may write there, as
    with a volume that Kubernetes gives to fsGroup."""
    with contextlib.suppress(FileNotFoundError):
        for found in os.scandir(CLAIMS):
            if found.stat().st_uid == 0 and not found.stat().st_mode & 0o002:
                Path(found.path).chmod(0o777)


def _tell_names(resolver: int, told: str) -> str:
    with contextlib.suppress(ClusterFailed):
        found = json.loads(kubectl("get", "services,endpoints", "--all-namespaces", "--output=json"))["items"]
        text = "".join(f"{address} {name}.svc.cluster.local\n" for address, name in sorted(set(_names(found))))
        if text != told:
            (RUN / "hosts").write_text(text)
            os.kill(resolver, signal.SIGHUP)
        return text
    return told


def _names(found: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for one in found:
        name = f"{one['metadata']['name']}.{one['metadata']['namespace']}"
        if one["kind"] == "Service" and one["spec"].get("clusterIP", "None") != "None":
            yield one["spec"]["clusterIP"], name
        if one["kind"] == "Endpoints":
            headless = "service.kubernetes.io/headless" in one["metadata"].get("labels", {})
            yield from _pod_names(one, name, headless=headless)


def _pod_names(endpoints: dict[str, Any], name: str, *, headless: bool) -> Iterator[tuple[str, str]]:
    for subset in endpoints.get("subsets", []):
        for address in subset.get("addresses", []):
            if headless:
                yield address["ip"], name
            if "hostname" in address:
                yield address["ip"], f"{address['hostname']}.{name}"


# ── down ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_up() -> bool:
    return _pid("kubelet") is not None


def down() -> None:
    """Ends what `up` started, by its process ids, and the pods, whose containers no kubelet looks after any more."""
    if not RUN.exists():
        return
    if is_up() and _pid("apiserver"):
        with contextlib.suppress(ClusterFailed):
            kubectl("delete", "pods", "--all", "--all-namespaces", "--force", "--grace-period=0", "--timeout=20s")
    for name in ("attendant", "dns", "proxy", "kubelet", "scheduler", "controller-manager", "apiserver", "etcd"):
        _end(name)
    with contextlib.suppress(ClusterFailed):
        run(str(BINARIES / "kube-proxy"), "--cleanup")
    pods = run("docker", "ps", "--all", "--quiet", "--filter", "name=k8s_").split()
    if pods:
        run("docker", "rm", "--force", *pods)
    for mount in reversed(Path("/proc/mounts").read_text().splitlines()):
        if mount.split()[1].startswith(f"{RUN}/"):
            run("umount", mount.split()[1])
    for group in Path("/sys/fs/cgroup").glob(f"*{CGROUP}"):
        _remove_groups(group)
    shutil.rmtree(RUN)


def _remove_groups(group: Path) -> None:
    """Removes a group and those below it; one that a process is still in stays."""
    for path in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()
    with contextlib.suppress(OSError):
        group.rmdir()


def _end(name: str) -> None:
    pid = _pid(name)
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 10
        while pid is not None and _is_alive(pid) and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(0.2)
    (RUN / f"{name}.pid").unlink(missing_ok=True)


def _pid(name: str) -> int | None:
    """The id of a part that runs; a number that passed on to another program is not ours."""
    try:
        pid = int((RUN / f"{name}.pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    ours = b"tests.kubernetes.cluster" if name == "attendant" else str(RUN).encode()
    return pid if ours in words else None


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def run_with_cluster(command: list[str]) -> int:
    """The command's exit code. A cluster that ran before is left running."""
    given, started = os.environ.get("CODEHUB_TEST_KUBECONFIG"), False
    if not given and not is_up():
        if reason := why_not():
            raise ClusterFailed(reason)
        build()
        started = True
        up()
    environment = {"CODEHUB_TEST_KUBECONFIG": given or str(KUBECONFIG), "CODEHUB_TEST_KUBERNETES": "1"}
    try:
        return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode
    finally:
        if started:
            down()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(words: list[str]) -> int:
    verbs: dict[str, Callable[[], None]] = {"build": build, "up": up, "down": down}
    try:
        match words:
            case ["attend", pid]:
                attend(int(pid))
            case ["status"]:
                print(kubectl("get", "nodes,pods,persistentvolumeclaims,jobs", "--all-namespaces", "--output=wide"))
            case ["check"]:
                if reason := why_not():
                    raise ClusterFailed(reason)
            case ["run", *command] if command:
                return run_with_cluster(command)
            case [verb] if verb in verbs:
                verbs[verb]()
                if verb == "up":
                    print(f"export KUBECONFIG={KUBECONFIG}")
            case _:
                say(__doc__ or "")
                return 2
    except ClusterFailed as failure:
        say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
