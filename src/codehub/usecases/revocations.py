"""Messages to the front doors, APIs and SSH gateways that access was revoked, so that they end what is still open.

Best effort: a process that missed one finds out when it next asks. The change itself never fails for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from codehub.domain.errors import Unreachable
from codehub.ports.accounts import EndedCredentials
from codehub.ports.signals import Bus
from codehub.telemetry import get_logger

AUTH_CHANNEL: Final = "codehub:auth"

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Revocations:
    bus: Bus

    async def signed_out(self, user_id: UUID, session_ids: Sequence[str]) -> None:
        if session_ids:
            await self._publish({"type": "signed_out", "user_id": str(user_id), "session_ids": list(session_ids)})

    async def ended(self, user_id: UUID, ended: EndedCredentials) -> None:
        await self.signed_out(user_id, ended.sessions)
        for token_id in ended.tokens:
            await self.token_revoked(user_id, token_id)

    async def user_disabled(self, user_id: UUID) -> None:
        await self._publish({"type": "user_disabled", "user_id": str(user_id)})

    async def role_changed(self, user_id: UUID) -> None:
        await self._publish({"type": "role_changed", "user_id": str(user_id)})

    async def token_revoked(self, user_id: UUID, token_id: UUID) -> None:
        await self._publish({"type": "token_revoked", "user_id": str(user_id), "token_id": str(token_id)})

    async def ssh_key_removed(self, user_id: UUID, key_id: UUID) -> None:
        await self._publish({"type": "ssh_key_removed", "user_id": str(user_id), "key_id": str(key_id)})

    async def _publish(self, message: dict[str, Any]) -> None:
        try:
            await self.bus.publish(AUTH_CHANNEL, message)
        except Unreachable as error:
            log.warning("nobody was told that access ended", change=message["type"], error=str(error))
