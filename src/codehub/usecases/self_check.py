"""Self-checks of an installation: findings with what to do about each, whether the backends are those that the database
remembers, and the probe of `codehub doctor --probe`.

The probe sends two throw-away workspaces through the real controller. One tries from inside what it must not reach, the
other is a neighbour whose home holds a secret. Whatever happens, both are deleted at the end, and what could not be
deleted is named.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

from codehub.domain.errors import BackendError, CodeHubError
from codehub.domain.naming import Backend, container_name, wrong_backend_message
from codehub.domain.workspace import Desired, Phase, Workspace
from codehub.ports.archives import Archives
from codehub.ports.runtime import Runtime
from codehub.ports.signals import Ids
from codehub.ports.stores import Actor, BackendIdentities, BackendRecord
from codehub.ports.views import WorkspaceViews
from codehub.usecases.workspace_commands import CreateWorkspace, WorkspaceCommands

OWNER = "codehub-doctor"
"""The owner of the probe's workspaces, which is no account: no person sees them."""

POLL_SECONDS = 0.25
NOTE = "codehub-doctor.txt"
CAN_READ = 'test -r "$1" && { [ ! -d "$1" ] || [ -n "$(ls -A "$1")" ]; }'
"""Succeeds if a path can be read; an empty directory counts as hidden, since that is what hiding leaves."""
PRIVILEGES = {
    "grep -q '^CapEff:.*[1-9a-f]' /proc/self/status": "an administrator's powers",
    "test -w /proc/sys/kernel/core_pattern": "the kernel's settings",
}
"""Scripts that must fail inside, and what it would mean if one succeeds."""

CAN_CONNECT = "bash -c '</dev/tcp/127.0.0.1/9' 2>&1 | grep -q refused"
CONNECT = 'timeout 3 bash -c "</dev/tcp/$1/$2"'
MORE_PROCESSES = "more processes than its share"
BEYOND_LIMITS = {
    """\
most=$(cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null | head -n 1)
case $most in ''|max) exit 0 ;; esac
i=0; while [ $i -le $most ] && [ $i -lt 5000 ]; do sleep 9 & i=$((i+1)); done
""": MORE_PROCESSES,
    """\
most=$(cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null | head -n 1)
case $most in ''|max) exit 0 ;; esac
[ $most -lt 1000000000000 ] || exit 0
head -c $((most + most / 4)) /dev/zero | tail -n 1 | wc -c | grep -q -v '^0$'
""": "more memory than its share",
}
"""Scripts that read a limit and succeed only if there is none or it does not hold."""

FRONT_DOOR = "the front door's port"
AT_ONCE = 4
"""How many connections are tried at a time: one that fails takes seconds, since nothing answers."""

Key = TypeVar("Key")
Inside = Callable[[Workspace, Sequence[str]], Awaitable[tuple[int, str]]]
"""Runs a command in the workspace's sandbox: exit code and output."""

TryPort = Callable[[Workspace], Awaitable[bool | None]]
"""Tries from inside to take the front door's port. True: a request was taken. None: nobody listens there."""


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `seen` is a fact; `advice` is empty when there is nothing to do."""

    name: str
    verdict: Verdict
    seen: str
    advice: str = ""


Tell = Callable[[Finding], None]


def ok(name: str, seen: str) -> Finding:
    return Finding(name, Verdict.OK, seen)


def warn(name: str, seen: str, advice: str) -> Finding:
    return Finding(name, Verdict.WARN, seen, advice)


def fail(name: str, seen: str, advice: str) -> Finding:
    return Finding(name, Verdict.FAIL, seen, advice)


def failed(findings: Iterable[Finding]) -> bool:
    return any(finding.verdict is Verdict.FAIL for finding in findings)


@dataclass(frozen=True, slots=True)
class ObservedBackend:
    """A backend as remembered and as found. `silence`: why it could not be asked. `found` None: a store without an
    owner's mark."""

    backend: Backend
    remembered: BackendRecord | None
    found: str | None = None
    silence: str = ""

    @property
    def trouble(self) -> str:
        """Why this is not the remembered backend; empty if it is, or if none is remembered yet."""
        if self.silence or self.remembered is None or self.found == self.remembered.identity:
            return self.silence
        return wrong_backend_message(self.backend, self.remembered.identity, self.found)

    def to_json(self) -> dict[str, Any]:
        known = self.remembered
        return {
            "backend": self.backend.value,
            "remembered": known.identity if known else None,
            "since": known.since.isoformat() if known else None,
            "found": self.found,
            "trouble": self.trouble,
        }


async def observe_backends(
    identities: BackendIdentities, runtime: Runtime, archives: Archives
) -> list[ObservedBackend]:
    remembered = await identities.remembered()
    return [
        await _observe(Backend.RUNTIME, remembered.get(Backend.RUNTIME), runtime.identity()),
        await _observe(Backend.ARCHIVES, remembered.get(Backend.ARCHIVES), archives.owner()),
    ]


async def _observe(backend: Backend, known: BackendRecord | None, asked: Awaitable[str | None]) -> ObservedBackend:
    try:
        return ObservedBackend(backend, known, await asked)
    except BackendError as error:
        return ObservedBackend(backend, known, silence=str(error))


class StepFailed(Exception):
    """A step of the probe failed: what was seen, and what to do."""

    def __init__(self, seen: str, advice: str) -> None:
        super().__init__(seen)
        self.seen = seen
        self.advice = advice


@dataclass(frozen=True, slots=True)
class ProbeEnvironment:
    """What a workspace must not reach. `hidden`: what each path is, for people. `isolates`: does the runtime promise
    it at all? `network_isolated`: it also promises a network of their own and limits; `addresses`: what is where on
    it."""

    hidden: Mapping[str, str]
    isolates: bool
    network_isolated: bool = False
    addresses: Mapping[tuple[str, int], str] = field(default_factory=dict)
    advice: str = "Let nobody else in until this is closed, and report it."
    not_promised: Mapping[str, str] = field(default_factory=dict)
    """What the runtime cannot limit itself, and what an operator does about it."""


@dataclass(frozen=True, slots=True)
class Probe:
    commands: WorkspaceCommands
    views: WorkspaceViews
    runtime: Runtime
    archives: Archives
    ids: Ids
    inside: Inside
    home_of: Callable[[Workspace], str]
    environment: ProbeEnvironment
    timeout_seconds: float = 120.0
    try_port: TryPort | None = None

    async def run(self, tell: Tell) -> None:
        """Runs the steps and tells each as it is done; after the first that fails, it cleans up."""
        made: list[UUID] = []
        try:
            await self._steps(made, tell)
        except StepFailed as stopped:
            tell(fail("probe", stopped.seen, stopped.advice))
        except CodeHubError as error:
            tell(fail("probe", str(error), "See the log of the coordinator and of the workspace."))
        finally:
            tell(await self._clean_up(made))

    async def _steps(self, made: list[UUID], tell: Tell) -> None:
        probe = await self._create(made, Desired.RUNNING)
        beside = Desired.RUNNING if self.environment.network_isolated else Desired.STANDBY
        neighbour = await self._create(made, beside)
        await self._settled(neighbour, Phase(beside.value))
        ws = await self._settled(probe, Phase.RUNNING)
        tell(ok("probe: start", "created, its home made, its IDE answers"))
        tell(await self._check_isolation(ws, await self._row(neighbour)))
        written = self.ids.new().hex
        await self._in_home(ws, f"printf %s {written} > {NOTE}")
        await self._brought_to(probe, Desired.ARCHIVED)
        tell(ok("probe: archive", "stopped, packed, read back and compared, its volume deleted"))
        ws = await self._brought_to(probe, Desired.STANDBY)
        found = await self._in_home(ws, f"cat {NOTE}")
        if found != written:
            raise StepFailed("the restored file is not what was written", "Do not rely on this archive store.")
        tell(ok("probe: restore", "restored from the archive; the file written before is there"))

    async def _check_isolation(self, ws: Workspace, neighbour: Workspace) -> Finding:
        await self._in_home(neighbour, f"printf %s secret > {NOTE}")
        hidden = {**self.environment.hidden, self.home_of(neighbour): "another workspace's home"}
        reached = await _successes(hidden, lambda path: self._succeeds(ws, CAN_READ, path))
        reached += await self._succeeding(ws, PRIVILEGES)
        tried = set(hidden.values())
        if self.environment.network_isolated:
            if not await self._succeeds(ws, CAN_CONNECT):
                raise StepFailed("the network cannot be tried from inside", "The image needs bash, grep and timeout.")
            addresses = await self._addresses(neighbour)
            reached += await _successes(addresses, lambda to: self._succeeds(ws, CONNECT, to[0], str(to[1])))
            reached += await self._succeeding(ws, BEYOND_LIMITS)
            tried |= {*addresses.values(), *BEYOND_LIMITS.values()}
        taken = await self.try_port(ws) if self.try_port is not None else None
        if taken is not None:
            tried.add(FRONT_DOOR)
            reached += [FRONT_DOOR] if taken else []
        open_ends = {what: advice for what, advice in self.environment.not_promised.items() if what in reached}
        reached = [what for what in reached if what not in open_ends]
        if not reached and open_ends:
            return warn("probe: isolation", f"not limited here: {', '.join(open_ends)}", " ".join(open_ends.values()))
        if not reached:
            return ok("probe: isolation", f"from inside out of reach: {', '.join(sorted(tried))}")
        seen = f"from inside in reach: {', '.join(sorted(set(reached)))}"
        if self.environment.isolates:
            return fail("probe: isolation", seen, self.environment.advice)
        advice = "Without bubblewrap and slirp4netns only one person may use this machine's CodeHub."
        return warn("probe: isolation", seen, advice)

    async def _succeeding(self, ws: Workspace, scripts: Mapping[str, str]) -> list[str]:
        return [what for script, what in scripts.items() if await self._succeeds(ws, script)]

    async def _addresses(self, neighbour: Workspace) -> Mapping[tuple[str, int], str]:
        endpoint = await self.runtime.endpoint(neighbour.id)
        if endpoint is None or endpoint.host is None or endpoint.port is None:
            raise StepFailed("the neighbour has no address", "Did it end just now? See its log.")
        what = "another workspace's IDE"
        by_name = (container_name(neighbour.id), endpoint.port)
        return {**self.environment.addresses, (endpoint.host, endpoint.port): what, by_name: what}

    async def _succeeds(self, ws: Workspace, script: str, *arguments: str) -> bool:
        return (await self.inside(ws, ["sh", "-c", script, "sh", *arguments]))[0] == 0

    async def _in_home(self, ws: Workspace, script: str) -> str:
        code, output = await self.inside(ws, ["sh", "-c", f'cd "$HOME" && {script}'])
        if code != 0:
            raise StepFailed(f"a command inside failed: {output.strip()[-200:]}", "Is the disk full, or read-only?")
        return output

    async def _create(self, made: list[UUID], desired: Desired) -> UUID:
        key = self.ids.new()
        new = CreateWorkspace(f"doctor {key.hex[:8]}", OWNER, desired, description="`codehub doctor --probe`")
        await self.commands.create(new, key, Actor(OWNER), await self.views.now())
        made.append(key)
        return key

    async def _brought_to(self, key: UUID, desired: Desired) -> Workspace:
        await self.commands.want(key, desired, Actor(OWNER), reason="probe")
        return await self._settled(key, Phase(desired.value))

    async def _row(self, key: UUID) -> Workspace:
        found = await self.views.get(key)
        if found is None:
            raise StepFailed("the probe's row is gone", "Did somebody restore or clear the database just now?")
        return found.workspace

    async def _settled(self, key: UUID, phase: Phase) -> Workspace:
        ws = await self._row(key)
        try:
            async with asyncio.timeout(self.timeout_seconds):
                while ws.phase is not phase or not ws.is_at_rest:
                    if ws.phase is Phase.ERROR:
                        why = ws.error_info.message if ws.error_info else "no reason given"
                        raise StepFailed(f"it went to ERROR: {ws.error_reason}: {why}", "docs/reference/errors.md")
                    await asyncio.sleep(POLL_SECONDS)
                    ws = await self._row(key)
        except TimeoutError:
            seen = f"not {phase} after {self.timeout_seconds:g} s, but {ws.phase} with {ws.operation}"
            raise StepFailed(seen, "Does a coordinator lead (`codehub admin leader`)? See its log.") from None
        return ws

    async def _clean_up(self, made: Sequence[UUID]) -> Finding:
        left = [str(key) for key in made if not await self._deleted(key)]
        if left:
            return warn("probe: clean up", f"left behind: {', '.join(left)}", "`codehub ws delete ID` as an admin.")
        return ok("probe: clean up", "deleted, its archives too")

    async def _deleted(self, key: UUID) -> bool:
        try:
            await self._brought_to(key, Desired.DELETED)
            for point in await self.views.restore_points(key):
                await self.archives.delete(point.key)
        except (CodeHubError, StepFailed):
            return False
        return True


async def _successes(tries: Mapping[Key, str], attempt: Callable[[Key], Awaitable[bool]]) -> list[str]:
    """The descriptions of the tries that succeed."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def tried(key: Key) -> bool:
        async with limit:
            return await attempt(key)

    outcomes = await asyncio.gather(*(tried(key) for key in tries), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [what for what, succeeded in zip(tries.values(), outcomes, strict=True) if succeeded]
