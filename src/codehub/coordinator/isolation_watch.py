"""The leader listens whether workspaces are still isolated from each other and from the platform.

The runtime looks and puts right; here the admins are told: at once of each disorder, and once of one that lasts.
"""

from codehub.domain.errors import BackendError, Unreachable
from codehub.ports.runtime import IsolationReport, Runtime
from codehub.ports.signals import Notifier
from codehub.telemetry import ISOLATION_DISTURBED, Metrics

RESTORED = "the isolation of workspaces was broken and has been restored"
BROKEN = "workspaces are not isolated: none is started"


class IsolationWatch:
    def __init__(self, runtime: Runtime, notifier: Notifier, metrics: Metrics) -> None:
        self._runtime = runtime
        self._notifier = notifier
        self._metrics = metrics
        self._told = ""

    async def run(self) -> None:
        """Until it fails: then whoever supervises runs it again. A runtime that is silent is told of elsewhere."""
        try:
            async for report in self._runtime.watch_isolation():
                await self._tell(report)
        except Unreachable:
            raise
        except BackendError as error:
            await self._tell(IsolationReport(str(error), holds=False))
            raise

    async def _tell(self, report: IsolationReport) -> None:
        if not report.holds and report.message == self._told:
            return
        self._told = "" if report.holds else report.message
        subject = RESTORED if report.holds else BROKEN
        self._metrics.add(ISOLATION_DISTURBED, holds=str(report.holds).lower())
        await self._notifier.notify(subject, {"details": report.message})
