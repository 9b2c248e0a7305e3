"""Whether a coordinator does its job, for whoever probes its status address: a standby does, a leader while it sees."""

from dataclasses import dataclass

STALE_PASS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """`pass_age`: seconds since the last pass that saw everything; None before the first."""

    leads: bool
    epoch: int | None
    pass_age: float | None
    queued: int

    @property
    def is_ready(self) -> bool:
        """A standby is: it is doing its job. A leader is while its last good pass is recent."""
        return not self.leads or (self.pass_age is not None and self.pass_age < STALE_PASS_SECONDS)
