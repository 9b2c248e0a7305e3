"""Notices to the admins: always a log line and an event in their open pages, and a webhook where one is set. Telling
never fails the teller.
"""

from collections.abc import Mapping
from typing import Any

import httpx
import structlog

from codehub.domain.errors import Unreachable
from codehub.domain.notices import Notice
from codehub.ports.signals import NOTICES, Bus, Notifier
from codehub.telemetry import NOTIFICATIONS, Metrics

log = structlog.get_logger(__name__)

WEBHOOK_SECONDS = 5.0


class LogNotifier:
    async def notify(self, notice: Notice) -> None:
        log.error(notice.subject, **notice.details)


class WebhookNotifier:
    """POSTs `{"subject": …, "details": …}` to a webhook. Redirects are not followed, and no cookie is kept between two
    posts."""

    def __init__(self, url: str, metrics: Metrics) -> None:
        self._url = url
        self._metrics = metrics
        self._log = LogNotifier()

    async def notify(self, notice: Notice) -> None:
        await self._log.notify(notice)
        outcome = await self._post(notice._asdict())
        self._metrics.add(NOTIFICATIONS, outcome=outcome)

    async def _post(self, body: Mapping[str, Any]) -> str:
        try:
            async with httpx.AsyncClient(timeout=WEBHOOK_SECONDS) as client:
                answer = await client.post(self._url, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            log.warning("webhook not reached", error=type(error).__name__)
            return "unreachable"
        if answer.is_error:
            log.warning("webhook refused", status=answer.status_code)
            return "refused"
        return "sent"


class BusNotifier:
    """Publishes each notice for the admins' event streams, and passes it on."""

    def __init__(self, bus: Bus, sse_prefix: str, after: Notifier) -> None:
        self._bus = bus
        self._channel = sse_prefix + NOTICES
        self._after = after

    async def notify(self, notice: Notice) -> None:
        try:
            await self._bus.publish(self._channel, {"type": "notice", **notice._asdict()})
        except Unreachable as error:
            log.warning("notice not published", error=str(error))
        await self._after.notify(notice)
