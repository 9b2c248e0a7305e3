"""A cluster in memory: what Cluster is asked for is done to a dictionary of objects, without a server or a node.

Nothing happens by itself: no pod starts, no Job makes a pod, and what is deleted is gone at once. What was done, in its
order, is in `effects`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from codehub.adapters.kubernetes.cluster import CONFLICT, Access, Cluster, Kind, Manifest, Refusal

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


class MemoryCluster(Cluster):
    """`broken`: what the next lists raise instead of answering. `logs`: what pods printed, or why nobody can say."""

    def __init__(self) -> None:
        super().__init__(Access(namespace="here"))
        self.objects: dict[tuple[Kind, str], Manifest] = {}
        self.effects: list[tuple[Any, ...]] = []
        self.broken: list[Exception] = []
        self.listed: list[str] = []
        self.refusals: dict[Kind, Refusal] = {}
        self.logs: dict[str, str | Exception] = {}

    @property
    def now(self) -> datetime:
        return NOW

    async def namespace(self) -> str:
        return "here"

    async def get(self, kind: Kind, name: str, *, cluster_wide: bool = False) -> Manifest | None:
        return self.objects.get((kind, name))

    async def list(self, kind: Kind, labels: str = "", fields: str = "") -> tuple[list[Manifest], str]:
        if self.broken:
            raise self.broken.pop(0)
        self.listed.append(kind.plural)
        return [one for (of, _), one in self.objects.items() if of == kind and fits(one, labels, fields)], "1"

    async def watch(
        self,
        kind: Kind,
        version: str,
        labels: str = "",
        fields: str = "",
        seconds: int = 60,
        opened: Callable[[], None] | None = None,
    ) -> AsyncGenerator[tuple[str, Manifest], None]:
        """Yields nothing, for so long."""
        if opened is not None:
            opened()
        await asyncio.sleep(seconds)
        nothing: list[tuple[str, Manifest]] = []
        for event in nothing:
            yield event

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        name = manifest["metadata"]["name"]
        if kind in self.refusals:
            raise self.refusals[kind]
        if (kind, name) in self.objects:
            raise Refusal(f"{kind.plural} {name!r} already exists", CONFLICT, "AlreadyExists")
        return self.put(kind, manifest, effect=True)

    async def patch(self, kind: Kind, name: str, change: Manifest) -> Manifest | None:
        self.effects.append(("patch", kind.plural, name, change))
        return self.objects.get((kind, name))

    async def delete(
        self, kind: Kind, name: str, uid: str, *, grace_seconds: int | None = None, propagation: str = "Background"
    ) -> bool:
        del propagation
        found = self.objects.get((kind, name))
        if found is None or found["metadata"]["uid"] != uid:
            return False
        self.effects.append(("delete", kind.plural, name, grace_seconds))
        del self.objects[kind, name]
        return True

    async def log(self, pod: str, container: str, tail: int) -> str:
        self.effects.append(("log", pod, container, tail))
        said = self.logs.get(pod, "")
        if isinstance(said, Exception):
            raise said
        return said

    def put(self, kind: Kind, manifest: Manifest, *, effect: bool = False) -> Manifest:
        """The object as the server has it, made by somebody else unless it is an effect of ours."""
        given = {"uid": uuid4().hex, "resourceVersion": "1", "creationTimestamp": NOW.isoformat()}
        told = given | manifest["metadata"]
        self.objects[kind, told["name"]] = {**manifest, "metadata": told}
        if effect:
            self.effects.append(("create", kind.plural, told["name"]))
        return self.objects[kind, told["name"]]


def fits(found: Manifest, labels: str, fields: str) -> bool:
    """Whether the selectors fit the object: labels that are equal or among some, and its name."""
    own = found["metadata"].get("labels") or {}
    for term in _terms(labels):
        name, _, rest = term.partition(" in ")
        if rest and own.get(name) not in rest.strip("()").split(","):
            return False
        name, equals, value = term.partition("=")
        if equals and own.get(name) != value:
            return False
    by_name = fields.partition("metadata.name=")[2]
    return not by_name or bool(found["metadata"]["name"] == by_name)


def _terms(selector: str) -> list[str]:
    """The terms of a selector, of which the commas within parentheses do not part it."""
    whole, _, among = selector.partition("(")
    terms = whole.split(",") if whole else []
    return [*terms[:-1], f"{terms[-1]}({among}"] if among else terms
