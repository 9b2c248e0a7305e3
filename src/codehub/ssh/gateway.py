"""The SSH server: who may connect, for how long, and how much of it they may have.

Only registered keys open a connection; there are no passwords. Whoever has not proved a key yet has little time and few
connections. What was opened ends when the key, the account or the right to the workspace is taken back: the bus tells,
and where it may have been missed, everybody is asked for again.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import asyncssh

from codehub.domain.authorized_keys import AuthorizedKey, fingerprint_of
from codehub.domain.credentials import address_group
from codehub.domain.errors import CodeHubError, Unauthenticated
from codehub.domain.identity import User
from codehub.ports.exec import ExecRequest, ExecSession
from codehub.ports.runtime import Runtime
from codehub.ports.signals import Bus, Clock
from codehub.ports.views import OwnedWorkspace
from codehub.ssh.forward import (
    ForwardedConnection,
    Hold,
    WorkspacePort,
    connected,
    refuse_other_hosts,
    refuse_other_ports,
)
from codehub.ssh.presence import FORWARD_BYTES_PER_TICK, ActivityReporter
from codehub.ssh.session import WorkspaceSession
from codehub.telemetry import get_logger
from codehub.usecases.bus_listener import BusListener, Message
from codehub.usecases.revocations import AUTH_CHANNEL
from codehub.usecases.ssh_access import SshAccess, Tell, caller_of, every
from codehub.usecases.workspace_access import WorkspaceCaller

log = get_logger(__name__)

RECHECK_SECONDS: Final = 30.0
UNHEARD_RECHECK_SECONDS: Final = 2.0
"""How often connections are checked again while the bus is not heard, for a revocation may have been missed, or after
a check that got no answer."""
TRIES_PER_CONNECTION: Final = 20
WINDOW: Final = 256 * 1024
"""How much a client may send on each channel before it is read."""
VERSION: Final = "CodeHub"

KEX: Final = (
    "mlkem768x25519-sha256",
    "curve25519-sha256",
    "curve25519-sha256@libssh.org",
    "ecdh-sha2-nistp256",
    "ecdh-sha2-nistp384",
    "ecdh-sha2-nistp521",
)
CIPHERS: Final = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes256-ctr",
    "aes128-ctr",
)
MACS: Final = ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com")
SIGNATURES: Final = (
    "ssh-ed25519",
    "sk-ssh-ed25519@openssh.com",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "rsa-sha2-512",
    "rsa-sha2-256",
)


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """How much a gateway gives. `grace_seconds`: to prove a key."""

    unauthenticated: int = 100
    unauthenticated_per_address: int = 10
    connections_per_person: int = 50
    channels_per_connection: int = 100
    grace_seconds: float = 30.0
    keepalive_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class GatewayParts:
    access: SshAccess
    runtime: Runtime
    bus: Bus
    clock: Clock
    reporter: ActivityReporter
    limits: GatewayLimits = field(default_factory=GatewayLimits)


class Gateway:
    def __init__(self, parts: GatewayParts) -> None:
        self.parts = parts
        self.connections: set[GatewayConnection] = set()
        self.strangers: Counter[str] = Counter()
        """How many connections each address has that have not proved a key yet."""
        self._recheck_now = asyncio.Event()
        self._listener = BusListener(parts.bus, AUTH_CHANNEL, self._hear, subscribed=self._recheck_now.set)

    async def listen(self, sock: socket.socket, key: asyncssh.SSHKey) -> asyncssh.SSHAcceptor:
        limits = self.parts.limits
        return await asyncssh.create_server(
            lambda: GatewayConnection(self),
            sock=sock,
            server_host_keys=[key],
            server_version=VERSION,
            encoding=None,
            line_editor=False,
            kex_algs=KEX,
            encryption_algs=CIPHERS,
            mac_algs=MACS,
            signature_algs=SIGNATURES,
            compression_algs=["none"],
            password_auth=False,
            kbdint_auth=False,
            host_based_auth=False,
            gss_host=None,
            agent_forwarding=False,
            x11_forwarding=False,
            allow_scp=False,
            window=WINDOW,
            login_timeout=limits.grace_seconds,
            keepalive_interval=limits.keepalive_seconds,
        )

    async def run(self) -> None:
        """Keeps everything current until cancelled. Nobody is connected afterwards."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listener.run())
                tasks.create_task(self._recheck_regularly())
                tasks.create_task(self.parts.reporter.run(self._tick))
        finally:
            for connection in list(self.connections):
                connection.end("the gateway is stopping")

    def _tick(self) -> None:
        for connection in self.connections:
            connection.tick()

    async def _hear(self, message: Message) -> None:
        if not await self._recheck([one for one in self.connections if one.user_id == message.get("user_id")]):
            self._recheck_now.set()

    async def _recheck_regularly(self) -> None:
        is_known = True
        while True:
            is_calm = is_known and self._listener.is_subscribed
            await every(self.parts.clock, RECHECK_SECONDS if is_calm else UNHEARD_RECHECK_SECONDS, self._recheck_now)
            is_known = await self._recheck(list(self.connections))

    async def _recheck(self, connections: "list[GatewayConnection]") -> bool:
        """Ends those connections that may not stay. Whether it is known of each of them."""
        is_known = True
        for connection in connections:
            try:
                if not await connection.still_allowed():
                    connection.end("access was taken back")
            except CodeHubError as error:  # nothing is known of this one: it is not sent away for it
                log.warning("cannot ask who still may stay", error=str(error))
                is_known = False
        return is_known


class GatewayConnection(asyncssh.SSHServer):
    """One client's connection, to the one workspace that its user name names."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._parts = gateway.parts
        self._tries = 0
        self._stranger: str | None = None
        self._found: tuple[AuthorizedKey, User] | None = None
        self._is_signed_in = False
        self._owned: OwnedWorkspace | None = None
        self._sessions: set[WorkspaceSession] = set()
        self._forwards = 0
        self._ports: set[WorkspacePort] = set()
        self.is_read = asyncio.Event()
        self.is_read.set()
        self._sent: Counter[int] = Counter()
        """What the client has sent through forwarded ports since the last tick."""
        self._recorded_ports: set[int] = set()

    # ── who it is ────────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._conn = conn
        # A channel's window bounds nothing if the client chose it: what the transport has not sent does. The library
        # ignores what the transport tells it.
        conn.pause_writing = self._pause_output  # type: ignore[method-assign]
        conn.resume_writing = self._resume_output  # type: ignore[method-assign]
        self._address = str((conn.get_extra_info("peername") or ("",))[0])
        group, strangers, limits = address_group(self._address), self._gateway.strangers, self._parts.limits
        if strangers.total() >= limits.unauthenticated or strangers[group] >= limits.unauthenticated_per_address:
            log.warning("ssh connection refused: too many that have proved no key", address=self._address)
            conn.abort()
            return
        strangers[group] += 1
        self._stranger = group

    def connection_lost(self, _exc: Exception | None) -> None:
        self._is_known()
        self._gateway.connections.discard(self)

    def begin_auth(self, username: str) -> bool:
        self._name = username
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    async def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        self._tries += 1
        if self._tries > TRIES_PER_CONNECTION:
            self._conn.disconnect(asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE, "Too many authentication failures")
            return False
        self._name = username
        try:
            self._found = await self._parts.access.key(fingerprint_of(key.public_data))
        except CodeHubError as error:
            log.warning("ssh keys cannot be looked up", error=str(error))
            self._found = None
        return self._found is not None

    def auth_completed(self) -> None:
        self._is_known()
        assert self._found is not None  # noqa: S101 - the last key that was accepted is the one that was proved
        others = sum(one.user_id == str(self._found[1].id) for one in self._gateway.connections)
        if others >= self._parts.limits.connections_per_person:
            self._conn.disconnect(asyncssh.DISC_TOO_MANY_CONNECTIONS, "You have too many connections already")
            return
        self._gateway.connections.add(self)

    def _is_known(self) -> None:
        """From now on it is no longer counted among those that have proved no key."""
        if self._stranger is not None:
            strangers = self._gateway.strangers
            strangers[self._stranger] -= 1
            if not strangers[self._stranger]:
                del strangers[self._stranger]
            self._stranger = None

    @property
    def user_id(self) -> str:
        return str(self._found[1].id) if self._found else ""

    async def still_allowed(self) -> bool:
        if self._found is None:
            return False
        return await self._parts.access.still_allowed(self._found[0], self._owned.workspace.id if self._owned else None)

    def end(self, reason: str) -> None:
        log.info("ssh connection ended", reason=reason, user=self._found[1].username if self._found else "")
        self._gateway.connections.discard(self)
        self._conn.disconnect(asyncssh.DISC_BY_APPLICATION, reason)
        self._conn.abort()

    # ── what it has ──────────────────────────────────────────────────────────────────────────────────────────────────

    def session_requested(self) -> WorkspaceSession:
        self._refuse_too_many_channels()
        session = WorkspaceSession(self)
        self._sessions.add(session)  # from now on: a client may open channels and ask for nothing on them
        return session

    def connection_requested(
        self, dest_host: str, dest_port: int, _orig_host: str, _orig_port: int
    ) -> "tuple[asyncssh.SSHTCPChannel[bytes], Awaitable[ForwardedConnection]]":
        refuse_other_hosts(dest_host)
        refuse_other_ports(dest_port)
        self._refuse_too_many_channels()
        self._forwards += 1
        return self._conn.create_tcp_channel(window=WINDOW), self._forward(dest_port)

    def _refuse_too_many_channels(self) -> None:
        if len(self._sessions) + self._forwards >= self._parts.limits.channels_per_connection:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_RESOURCE_SHORTAGE, "too many channels")

    def closed(self, session: WorkspaceSession) -> None:
        self._sessions.discard(session)

    def _pause_output(self) -> None:
        self.is_read.clear()
        for port in self._ports:
            port.hold(Hold.CONNECTION_FULL)

    def _resume_output(self) -> None:
        self.is_read.set()
        for port in self._ports:
            port.release(Hold.CONNECTION_FULL)

    def worked(self, workspace_id: UUID) -> None:
        self._parts.reporter.seen(workspace_id)

    def tick(self) -> None:
        for session in self._sessions:
            session.tick()
        if self._owned is not None and any(sent > FORWARD_BYTES_PER_TICK for sent in self._sent.values()):
            self.worked(self._owned.workspace.id)
        self._sent.clear()

    async def start(self, request: ExecRequest, said: str, tell: Tell) -> tuple[UUID, ExecSession]:
        caller, key, owned = await self._entered()
        workspace = await self._parts.access.running(caller, owned.workspace, tell)
        await self._parts.access.record(caller, key, owned, {"command": said})
        self.worked(workspace.id)
        return workspace.id, await self._parts.runtime.exec(workspace.id, request)

    async def _entered(self) -> tuple[WorkspaceCaller, AuthorizedKey, OwnedWorkspace]:
        """The caller and their workspace, both asked for anew for each session and port: the key may have been removed
        and the user's role changed since it was proved. Raises CodeHubError."""
        assert self._found is not None  # noqa: S101 - nothing is asked for before a key was proved
        found = await self._parts.access.same_key(self._found[0])
        if found is None:
            self.end("access was taken back")
            raise Unauthenticated("This key is no longer yours to enter with.")
        self._found = key, user = found
        if not self._is_signed_in:
            await self._parts.access.signed_in(key)
            self._is_signed_in = True
        caller = caller_of(key, user, self._address)
        self._owned = await self._parts.access.workspace(caller, self._name)
        return caller, key, self._owned

    async def _forward(self, port: int) -> ForwardedConnection:
        inside: WorkspacePort | None = None
        try:
            caller, key, owned = await self._entered()
            inside = await connected(self._parts.runtime, owned.workspace.id, port)
            if port not in self._recorded_ports:
                await self._parts.access.record(caller, key, owned, {"port": str(port)})
                self._recorded_ports.add(port)
            if self not in self._gateway.connections:
                raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "the connection has ended")
        except BaseException as error:
            self._forward_closed(inside)
            if isinstance(error, CodeHubError):
                raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from error
            raise
        self._ports.add(inside)
        if not self.is_read.is_set():
            inside.hold(Hold.CONNECTION_FULL)
        return ForwardedConnection(
            inside, lambda size: self._sent.update({port: size}), lambda: self._forward_closed(inside)
        )

    def _forward_closed(self, inside: WorkspacePort | None) -> None:
        self._forwards -= 1
        if inside is not None:
            self._ports.discard(inside)
            inside.close()
