"""What to do: the outputs of the controller's machine. Imperatives, carried out by its driver.

The controller maps each class to one function of ``runtime.effects``; the simulator to an event
some time later. An action never decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firepool_ray.core.model import Fence, Grant, LeaseId, Rejection, ReuseKey

RevokeMode = Literal["if_idle", "drain", "stop"]


@dataclass(frozen=True, slots=True)
class Action:
    pass


@dataclass(frozen=True, slots=True)
class GrowLane(Action):
    """Answered by ``LaneReady`` or ``LaneFailed``."""

    lane: str
    profile: str


@dataclass(frozen=True, slots=True)
class RemoveLane(Action):
    """All its workers are gone. Answered by ``LaneRemoved``."""

    lane: str


@dataclass(frozen=True, slots=True)
class StartWorker(Action):
    """Answered by ``WorkerStarted`` or ``WorkerStartFailed``."""

    worker: str
    lane: str
    slot: int


@dataclass(frozen=True, slots=True)
class PromoteWorker(Action):
    """Answered by ``WorkerPromoted`` or ``PromotionFailed``."""

    worker: str
    fence: Fence
    key: ReuseKey
    client: str


@dataclass(frozen=True, slots=True)
class RevokeLease(Action):
    """Answered by ``RevokeAnswered``.

    ``if_idle`` leaves a busy worker as it is, ``drain`` lets it finish its job and no further,
    ``stop`` drains and stops the running job. With ``successor`` an idle worker goes back to idle
    under that fence for ``client`` in the same step (answer ``moved``).
    """

    worker: str
    fence: Fence
    mode: RevokeMode
    min_idle_s: float = 0.0
    successor: Fence | None = None
    client: str = ""


@dataclass(frozen=True, slots=True)
class RegrantLease(Action):
    """A revoked worker back to idle. Answered by ``LeaseRegranted`` or ``WorkerExited``."""

    worker: str
    revoked: Fence
    fence: Fence
    client: str


@dataclass(frozen=True, slots=True)
class RetireWorker(Action):
    """Kill the worker's processes and sweep. Answered by ``WorkerRetired`` or ``RetireFailed``."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class SendGrant(Action):
    client: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class SendRevoked(Action):
    """Tell a client that a lease is no longer its own."""

    client: str
    lease: LeaseId


@dataclass(frozen=True, slots=True)
class SendRejection(Action):
    client: str
    rejection: Rejection


@dataclass(frozen=True, slots=True)
class WakeAt(Action):
    """Send ``Woke`` at this time. A later action replaces an earlier one."""

    when: float
