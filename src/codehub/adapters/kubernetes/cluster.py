"""The connection to a Kubernetes API server: objects as plain dictionaries, and what its failures mean to us.

A look that gets no answer, or is forbidden, leaves the truth unknown; an effect that is refused has failed, in the
server's own words. Every delete names the object by its UID: a name may have passed to another meanwhile. The library
below is loaded with the first connection, so that a process without a cluster does not carry it.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import aiohttp

from codehub.domain.errors import BackendError, Unreachable

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.client.rest import RESTClientObject

Manifest = dict[str, Any]
"""An object as the API server has it in JSON."""

ENDPOINT = "k8s-api"
OK, NOT_FOUND, CONFLICT, GONE, UNAUTHORIZED, FORBIDDEN = 200, 404, 409, 410, 401, 403
TOO_MANY_REQUESTS, SERVERS_FAULT = 429, 500
PAGE = 500
_ANSWER_SECONDS = 15.0
_CONNECT_SECONDS = 5.0
_PATIENCE = aiohttp.ClientTimeout(total=_ANSWER_SECONDS, sock_connect=_CONNECT_SECONDS)
_REFRESH_SECONDS = 60.0
_LONGEST_MESSAGE = 500
_LONGEST_LOG = 1 << 20
_MERGE = "application/merge-patch+json"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_KUBECONFIG = "~/.kube/config"
_VERBS = {"GET": "look at", "POST": "create", "PATCH": "change", "DELETE": "delete"}
_BROKE_OFF = (OSError, aiohttp.ClientError, TimeoutError, json.JSONDecodeError)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object: the path of its API group and version, and its name in the plural."""

    api: str
    plural: str
    group: str = ""

    def path(self, namespace: str | None, name: str = "", part: str = "") -> str:
        place = [self.api, *(("namespaces", namespace) if namespace else ()), self.plural]
        return "/".join([*place, *((name,) if name else ()), *((part,) if part else ())])


PODS = Kind("/api/v1", "pods")
CLAIMS = Kind("/api/v1", "persistentvolumeclaims")
SECRETS = Kind("/api/v1", "secrets")
EVENTS = Kind("/api/v1", "events")
NAMESPACES = Kind("/api/v1", "namespaces")
JOBS = Kind("/apis/batch/v1", "jobs", "batch")
POLICIES = Kind("/apis/networking.k8s.io/v1", "networkpolicies", "networking.k8s.io")
POD_METRICS = Kind("/apis/metrics.k8s.io/v1beta1", "pods", "metrics.k8s.io")


class Refusal(BackendError):
    """The API server answered with a failure. `status`: the HTTP status; `cause`: the server's own word for it."""

    def __init__(self, message: str, status: int, cause: str = "") -> None:
        super().__init__(message, status_code=status, endpoint=ENDPOINT)
        self.status = status
        self.cause = cause

    @property
    def already_exists(self) -> bool:
        """Whether something of that name is there. Other conflicts, such as a quota's, say nothing of the kind."""
        return self.cause == "AlreadyExists"


class Expired(Unreachable):
    """What a watch or the next page of a list asks for is too old: only a new list tells what there is."""


@dataclass(frozen=True, slots=True)
class Access:
    """Which cluster, and as whom. `kubeconfig`: paths as in KUBECONFIG; empty: the usual file, or inside of a pod its
    service account. `namespace` empty: the pod's own, or that of the kubeconfig's context."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""

    @property
    def is_from_inside(self) -> bool:
        """Whether we are a pod of the cluster ourselves, and speak as its service account."""
        own = bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (_ACCOUNT / "token").is_file()
        return own and not self.kubeconfig and not self.context

    @property
    def own_namespace(self) -> str | None:
        """The namespace of the pod that we are; None outside of the cluster."""
        return (_ACCOUNT / "namespace").read_text().strip() if self.is_from_inside else None


@dataclass(slots=True)
class _Connection:
    """An open connection. `refresh_at`: when credentials of a kubeconfig are asked for anew."""

    configuration: "Configuration"
    rest: "RESTClientObject"
    namespace: str
    loader: Any = None
    refresh_at: float = field(default=float("inf"))


class Cluster:
    """Nothing is asked before the first call, so an API server that is down does not keep us from starting."""

    def __init__(self, access: Access | None = None) -> None:
        self.access = access or Access()
        self._connection: _Connection | None = None
        self._alone = asyncio.Lock()
        self._ahead = timedelta()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.rest.close()

    @property
    def now(self) -> datetime:
        """The time by the API server's clock, as its last answer told it."""
        return datetime.now(UTC) + self._ahead

    async def namespace(self) -> str:
        return (await self._connected()).namespace

    async def host(self) -> str:
        return str((await self._connected()).configuration.host)

    async def version(self) -> str:
        found = await self._asked("GET", "/version", "the version")
        return str(found.get("gitVersion", ""))

    async def get(self, kind: Kind, name: str, *, cluster_wide: bool = False) -> Manifest | None:
        """The object of that name as it is now; None if there is none."""
        namespace = None if cluster_wide else await self.namespace()
        try:
            return await self._asked("GET", kind.path(namespace, name), kind.plural)
        except Refusal as refusal:
            # Only the API server's own word counts: a proxy before it may answer 404 too.
            if refusal.status == NOT_FOUND and refusal.cause == "NotFound":
                return None
            raise _unknown(refusal) from refusal

    async def list(self, kind: Kind, labels: str = "", fields: str = "") -> tuple[list[Manifest], str]:
        """All objects that the selectors fit, page by page, and the version of the list."""
        found: list[Manifest] = []
        path, token = kind.path(await self.namespace()), ""
        while True:
            query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields, "continue": token}
            try:
                page = await self._asked("GET", path, kind.plural, query={k: v for k, v in query.items() if v})
            except Refusal as refusal:
                if refusal.status == GONE:
                    raise Expired("the list changed while it was read", endpoint=ENDPOINT) from refusal
                raise _unknown(refusal) from refusal
            found += page.get("items") or ()
            token = (page.get("metadata") or {}).get("continue", "")
            if not token:
                return found, str((page.get("metadata") or {}).get("resourceVersion", ""))

    async def watch(
        self,
        kind: Kind,
        version: str,
        labels: str = "",
        fields: str = "",
        seconds: int = 60,
        opened: Callable[[], None] | None = None,
    ) -> AsyncGenerator[tuple[str, Manifest], None]:
        """Yields what changes after `version`, as (ADDED, MODIFIED, DELETED or BOOKMARK, object), for about `seconds`.
        Expired if that version is too old; Unreachable if the connection breaks. `opened` is called once the server has
        agreed."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        path = f"{kind.path(await self.namespace())}?{urlencode({k: v for k, v in query.items() if v})}"
        patience = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=seconds + _ANSWER_SECONDS)
        async with self._talking(), await self._request("GET", path, patience=patience) as response:
            if response.status != OK:
                raise _failed_watch(kind, response.status, await response.text())
            if opened is not None:
                opened()
            async for line in response.content:
                if not line.endswith(b"\n"):
                    raise Unreachable("a watch was cut off", endpoint=ENDPOINT)
                yield _event(json.loads(line))

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        return await self._asked("POST", kind.path(await self.namespace()), kind.plural, body=manifest)

    async def patch(self, kind: Kind, name: str, change: Manifest) -> Manifest | None:
        """Merges the change into the object; None if there is none of that name."""
        try:
            return await self._asked("PATCH", kind.path(await self.namespace(), name), kind.plural, body=change)
        except Refusal as refusal:
            if refusal.status == NOT_FOUND:
                return None
            raise

    async def delete(
        self, kind: Kind, name: str, uid: str, *, grace_seconds: int | None = None, propagation: str = "Background"
    ) -> bool:
        """Asks for the end of this very object. False: there is no such object any more, whatever has its name."""
        options: Manifest = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {"uid": uid},
            "propagationPolicy": propagation,
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            await self._asked("DELETE", kind.path(await self.namespace(), name), kind.plural, body=options)
        except Refusal as refusal:
            if refusal.status not in (NOT_FOUND, CONFLICT):
                raise
            return False
        return True

    async def log(self, pod: str, container: str, tail: int) -> str:
        """The last lines that a container of the pod printed, of which the last MiB is kept; empty if it is gone or has
        not begun."""
        query = urlencode({"container": container, "tailLines": str(tail)})
        async with self._talking():
            path = f"{PODS.path(await self.namespace(), pod, 'log')}?{query}"
            async with await self._request("GET", path) as response:
                text = await _end_of(response)
                if response.ok:
                    return text
        if response.status in (NOT_FOUND, 400):
            return ""
        raise _unknown(_refusal("GET", "pods/log", response.status, text))

    async def _asked(
        self, method: str, path: str, what: str, *, body: Manifest | None = None, query: Mapping[str, str] | None = None
    ) -> Manifest:
        url = f"{path}?{urlencode(query)}" if query else path
        async with self._talking(), await self._request(method, url, body) as response:
            text = await response.text()
            if response.status < 300:
                self._hear_clock(response.headers.get("Date"))
                answer: Manifest = json.loads(text)
                return answer
            if response.status == UNAUTHORIZED and self._connection is not None:
                self._connection.refresh_at = 0.0  # the token may have been replaced
        raise _refusal(method, what, response.status, text)

    async def _request(
        self, method: str, path: str, body: Manifest | None = None, patience: aiohttp.ClientTimeout = _PATIENCE
    ) -> aiohttp.ClientResponse:
        connection = await self._connected()
        headers = {"Accept": "application/json"}
        if method == "PATCH":
            headers["Content-Type"] = _MERGE
        for setting in (await connection.configuration.auth_settings()).values():
            headers[setting["key"]] = setting["value"]
        host = str(connection.configuration.host)
        answer: aiohttp.ClientResponse = await connection.rest.request(
            method, host + path, headers=headers, body=body, _preload_content=False, _request_timeout=patience
        )
        return answer

    @asynccontextmanager
    async def _talking(self) -> AsyncGenerator[None, None]:
        """A connection that breaks inside this block means Unreachable."""
        try:
            yield
        except _BROKE_OFF as error:
            words = str(error) or type(error).__name__
            message = f"the Kubernetes API server did not answer: {words[:_LONGEST_MESSAGE]}"
            raise Unreachable(message, endpoint=ENDPOINT, error=words) from error

    def _hear_clock(self, date: str | None) -> None:
        """Notes how far the server's clock is from ours; its header has whole seconds."""
        if date is None:
            return
        difference = parsedate_to_datetime(date) - datetime.now(UTC)
        self._ahead = difference if abs(difference) > timedelta(seconds=2) else timedelta()

    async def _connected(self) -> _Connection:
        async with self._alone:
            if self._connection is None:
                self._connection = await self._opened()
            found = self._connection
            if asyncio.get_running_loop().time() > found.refresh_at:
                await self._refresh(found)
            return found

    async def _opened(self) -> _Connection:
        from kubernetes_asyncio.client import (  # noqa: PLC0415 - 40 MB that only a process with a cluster should have
            Configuration,
        )
        from kubernetes_asyncio.client.rest import RESTClientObject  # noqa: PLC0415 - as above

        configuration = Configuration()
        if self.access.is_from_inside:
            self._load_account(configuration)
            own = (_ACCOUNT / "namespace").read_text().strip()
            return _Connection(configuration, RESTClientObject(configuration), self.access.namespace or own)
        loader = await self._from_kubeconfig(configuration)
        context = (loader.current_context or {}).get("context") or {}
        namespace = self.access.namespace or context.get("namespace") or "default"
        found = _Connection(configuration, RESTClientObject(configuration), namespace, loader)
        found.refresh_at = asyncio.get_running_loop().time() + _REFRESH_SECONDS
        return found

    def _load_account(self, configuration: "Configuration") -> None:
        from kubernetes_asyncio import config  # noqa: PLC0415 - as in _opened

        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException as error:
            raise BackendError(f"the pod's service account cannot be used: {error}") from error

    async def _from_kubeconfig(self, configuration: "Configuration") -> Any:  # noqa: ANN401 - the library's loader
        from kubernetes_asyncio import config  # noqa: PLC0415 - as in _opened

        paths = self.access.kubeconfig or os.environ.get("KUBECONFIG") or _KUBECONFIG
        files = _existing(paths)
        if not files:
            raise BackendError(
                f"there is no kubeconfig {paths}, and this is no pod of a cluster: name one (KUBECONFIG), or choose "
                "another runtime (CODEHUB_RUNTIME)"
            )
        try:
            return await config.load_kube_config(
                os.pathsep.join(files),
                context=self.access.context or None,
                client_configuration=configuration,
                persist_config=False,
            )
        except (config.ConfigException, OSError, ValueError) as error:
            raise BackendError(f"the kubeconfig {paths} cannot be used: {error}") from error

    async def _refresh(self, found: _Connection) -> None:
        """Asks for credentials anew that a program or a file gives for a while. What fails is seen at the next call.
        The library reads a pod's own token again by itself, once a minute."""
        if found.loader is None:
            found.refresh_at = float("inf")
            self._load_account(found.configuration)
            return
        found.refresh_at = asyncio.get_running_loop().time() + _REFRESH_SECONDS
        if "exec" in found.loader._user or "tokenFile" in found.loader._user:  # noqa: SLF001 - it has no other way
            await self._from_kubeconfig(found.configuration)


def _existing(paths: str) -> list[str]:
    """The files that are there of a list such as KUBECONFIG."""
    named = [Path(one).expanduser() for one in paths.split(os.pathsep) if one]
    return [str(one) for one in named if one.is_file()]


def _event(line: Mapping[str, Any]) -> tuple[str, Manifest]:
    kind, found = str(line.get("type")), line.get("object") or {}
    if kind == "ERROR":
        if found.get("code") == GONE:
            raise Expired("a watch fell behind", endpoint=ENDPOINT)
        raise Unreachable(f"a watch ended: {found.get('message', '')}", endpoint=ENDPOINT)
    return kind, found


def _failed_watch(kind: Kind, status: int, text: str) -> Unreachable:
    if status == GONE:
        return Expired("a watch began too late", endpoint=ENDPOINT)
    return _unknown(_refusal("GET", kind.plural, status, text))


async def _end_of(response: aiohttp.ClientResponse) -> str:
    """The end of a text of any length: lines may be as long as somebody likes."""
    kept = bytearray()
    async for chunk in response.content.iter_any():
        kept += chunk
        del kept[:-_LONGEST_LOG]
    return kept.decode(errors="replace")


def _refusal(method: str, what: str, status: int, text: str) -> BackendError:
    """The server's answer as an error: what gave no answer at all is Unreachable, all else a refusal with its words."""
    try:
        said = json.loads(text)
    except ValueError:
        said = {}
    words = str(said.get("message") or text.strip() or f"status {status}")[:_LONGEST_MESSAGE]
    if status == UNAUTHORIZED:
        message = f"the Kubernetes API server does not know us (to {_VERBS[method]} {what}): {words}"
        return Unreachable(message, endpoint=ENDPOINT, status_code=status, error=words)
    if status == TOO_MANY_REQUESTS or status >= SERVERS_FAULT:
        message = f"the Kubernetes API server did not answer: {words}"
        return Unreachable(message, endpoint=ENDPOINT, status_code=status, error=words)
    if status == FORBIDDEN:
        words = f"may not {_VERBS[method]} {what}: {words}"
    return Refusal(words, status, str(said.get("reason", "")))


def _unknown(error: BackendError) -> Unreachable:
    """A look that was refused: what there is stays unknown."""
    if isinstance(error, Unreachable):
        return error
    message = f"the Kubernetes API server does not tell: {error}"
    return Unreachable(message, endpoint=ENDPOINT, status_code=error.context.get("status_code"), error=str(error))
