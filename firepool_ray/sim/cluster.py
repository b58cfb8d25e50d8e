"""The simulated cluster: lanes, workers with their lease words, and the wardens' answers.

Carries out the controller's orders after the drawn times, exactly as lanes, wardens and workers
do, and tells the controller what happened. Used by the engine. Nothing fails here and nothing is
decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firepool_ray.core import actions as do
from firepool_ray.core import events as ev
from firepool_ray.core.model import Fence, LeaseId, ReuseKey
from firepool_ray.errors import InternalError
from firepool_ray.sim.accounts import BUSY, FREE, IDLE, NOWHERE, STARTING, GpuAccounts, Starts
from firepool_ray.sim.clock import Channel, Clock
from firepool_ray.sim.costs import Draws

NODE = "node"
#: States of a word in which the worker is its lane's active one.
_ACTIVE_STATE = {
    "promoting": STARTING,
    "idle": IDLE,
    "busy": BUSY,
    "draining": BUSY,
    "revoked": IDLE,
    "leaving": STARTING,
}


class Ground:
    """A lane as the cluster sees it."""

    __slots__ = (
        "_alone_since",
        "_alone_s",
        "active",
        "gpus",
        "id",
        "profile",
        "ready",
        "starting",
        "state",
    )

    def __init__(self, id: str, profile: str, gpus: float, at: float) -> None:
        self.id = id
        self.profile = profile
        self.gpus = gpus  #: its units
        self.ready = False
        self.active: Word | None = None
        self.starting = 0  #: workers that start there
        self.state = NOWHERE
        self._alone_s = 0.0
        self._alone_since: float | None = at  #: no worker uses it, or the last one leaves

    def used(self, at: float) -> None:
        if self._alone_since is not None:
            self._alone_s += at - self._alone_since
            self._alone_since = None

    def left(self, at: float) -> None:
        if self._alone_since is None:
            self._alone_since = at

    def alone_s(self, at: float) -> float:
        """How long no worker has used it, so far."""
        return self._alone_s + (at - self._alone_since if self._alone_since is not None else 0.0)


class Word:
    """A worker's process and its lease word."""

    __slots__ = (
        "alone_s",
        "client",
        "fence",
        "ground",
        "job",
        "key",
        "news",
        "orders",
        "reported_idle",
        "since",
        "state",
        "takes_s",
        "worker",
    )

    def __init__(self, worker: str, ground: Ground) -> None:
        self.worker = worker
        self.ground = ground
        #: starting standby promoting idle busy draining revoked leaving
        self.state = "starting"
        self.fence = Fence(0, 0)
        self.key: ReuseKey | None = None
        self.client = ""
        self.job = ""
        self.since = 0.0
        self.takes_s = 0.0  #: its start
        self.alone_s = 0.0  #: its lane's, then
        self.reported_idle = False
        self.orders = Channel()
        self.news = Channel()


class Cluster:
    def __init__(
        self,
        clock: Clock,
        draws: Draws,
        accounts: GpuAccounts,
        starts: Starts,
        units: dict[str, float],
        linger_s: Callable[[str], float],
        tell: Callable[[ev.Event], None],
    ) -> None:
        self._clock = clock
        self._draws = draws
        self._accounts = accounts
        self._starts = starts
        self._units = units  #: of one lane, by profile
        self._linger_s = linger_s  #: by profile: shorter idleness is not worth a message
        self._tell = tell
        self._lane_news = Channel()
        self.grounds: dict[str, Ground] = {}
        self.words: dict[str, Word] = {}
        self.orders: dict[type[do.Action], Callable[[Any], None]] = {
            do.GrowLane: self._grow,
            do.RemoveLane: self._remove,
            do.StartWorker: self._start,
            do.PromoteWorker: self._promote,
            do.RevokeLease: self._revoke,
            do.RegrantLease: self._regrant,
            do.RetireWorker: self._retire,
        }

    # -- lanes ---------------------------------------------------------------------------------

    def _account(self, ground: Ground) -> None:
        """The lane's state follows from its workers."""
        active = ground.active
        if not ground.ready:
            state = STARTING
        elif active is not None:
            state = _ACTIVE_STATE[active.state]
        else:
            state = STARTING if ground.starting else FREE
        self._enter(ground, state)

    def _enter(self, ground: Ground, state: int) -> None:
        if state != ground.state:
            self._accounts.change(self._clock.now, ground.state, state, ground.gpus)
            ground.state = state

    def _grow(self, action: do.GrowLane) -> None:
        units = self._units[action.profile]
        ground = Ground(action.lane, action.profile, units, self._clock.now)
        self.grounds[ground.id] = ground
        self._account(ground)
        self._clock.at(self._clock.now + self._draws.grow_s(), self._grown, ground)

    def _grown(self, ground: Ground) -> None:
        if ground.id in self.grounds:
            ground.ready = True
            self._account(ground)
            self._clock.send(self._lane_news, self._tell_lane_ready, ground)

    def _tell_lane_ready(self, ground: Ground) -> None:
        self._tell(ev.LaneReady(self._clock.now, ground.id, NODE))

    def _remove(self, action: do.RemoveLane) -> None:
        self._clock.send(self._lane_news, self._removed, action.lane)

    def _removed(self, lane: str) -> None:
        ground = self.grounds.pop(lane)
        if ground.active is not None or ground.starting:
            raise InternalError(f"lane {lane} was removed while a worker lives there")
        self._enter(ground, NOWHERE)
        self._tell(ev.LaneRemoved(self._clock.now, lane))

    # -- workers -------------------------------------------------------------------------------

    def _start(self, action: do.StartWorker) -> None:
        ground = self.grounds[action.lane]
        word = self.words[action.worker] = Word(action.worker, ground)
        ground.starting += 1
        self._account(ground)
        self._clock.send(word.orders, self._begin_start, word)

    def _begin_start(self, word: Word) -> None:
        now = self._clock.now
        word.alone_s = word.ground.alone_s(now)
        word.takes_s = self._draws.cold_s()
        self._clock.at(now + word.takes_s, self._started, word)

    def _started(self, word: Word) -> None:
        if word.state != "starting":
            return  # retired meanwhile
        ground = word.ground
        word.state = "standby"
        ground.starting -= 1
        self._starts.started(ground.gpus, self._alone(word))
        self._account(ground)
        self._clock.send(word.news, self._tell_started, word)

    def _alone(self, word: Word) -> float:
        """The part of the worker's start, up to now, in which no other used its lane."""
        if not word.takes_s:
            return float(word.ground.active is None)
        return (word.ground.alone_s(self._clock.now) - word.alone_s) / word.takes_s

    def _tell_started(self, word: Word) -> None:
        self._tell(ev.WorkerStarted(self._clock.now, word.worker))

    def _promote(self, action: do.PromoteWorker) -> None:
        self._clock.send(self.words[action.worker].orders, self._begin_promotion, action)

    def _begin_promotion(self, action: do.PromoteWorker) -> None:
        word = self.words[action.worker]
        if word.state != "standby":
            return  # it has to leave instead
        ground = word.ground
        if ground.active is not None:
            raise InternalError(f"two active workers in lane {ground.id}")
        word.state = "promoting"
        word.fence, word.key, word.client = action.fence, action.key, action.client
        ground.active = word
        ground.used(self._clock.now)
        self._account(ground)
        self._clock.at(self._clock.now + self._draws.promote_s(), self._promoted, word)

    def _promoted(self, word: Word) -> None:
        if word.state != "promoting":
            return
        self._becomes_idle(word)
        self._clock.send(word.news, self._tell_promoted, word)

    def _tell_promoted(self, word: Word) -> None:
        self._tell(ev.WorkerPromoted(self._clock.now, word.worker, word.fence))

    def _regrant(self, action: do.RegrantLease) -> None:
        self._clock.send(self.words[action.worker].orders, self._regranted, action)

    def _regranted(self, action: do.RegrantLease) -> None:
        word = self.words[action.worker]
        if word.state != "revoked" or word.fence != action.revoked:
            return
        word.fence, word.client = action.fence, action.client
        self._becomes_idle(word)
        self._clock.send(word.news, self._tell_regranted, (word, action.fence))

    def _tell_regranted(self, told: tuple[Word, Fence]) -> None:
        word, fence = told
        self._tell(ev.LeaseRegranted(self._clock.now, word.worker, fence))

    def _retire(self, action: do.RetireWorker) -> None:
        word = self.words[action.worker]
        self._clock.send(word.orders, self._begin_leaving, word)

    def _begin_leaving(self, word: Word) -> None:
        if word.state in ("idle", "busy", "draining"):
            raise InternalError(f"worker {word.worker} is killed before it was revoked")
        ground = word.ground
        if word.state == "starting":
            ground.starting -= 1
            self._starts.given_up(ground.gpus, self._alone(word))
        word.state = "leaving"
        if ground.active is word:
            ground.left(self._clock.now)
        self._account(ground)
        self._clock.at(self._clock.now + self._draws.retire_s(), self._left, word)

    def _left(self, word: Word) -> None:
        ground = word.ground
        if ground.active is word:
            ground.active = None
        del self.words[word.worker]
        self._account(ground)
        self._clock.send(word.news, self._tell_retired, word)

    def _tell_retired(self, word: Word) -> None:
        self._tell(ev.WorkerRetired(self._clock.now, word.worker))

    # -- leases --------------------------------------------------------------------------------

    def _revoke(self, action: do.RevokeLease) -> None:
        word = self.words.get(action.worker)
        if word is not None:
            self._clock.send(word.orders, self._answer_revoke, action)

    def _answer_revoke(self, action: do.RevokeLease) -> None:
        word = self.words.get(action.worker)
        if word is not None:
            answer = self._revoked(word, action)
            self._clock.send(word.news, self._tell_answer, (word, action.fence, answer))

    def _tell_answer(self, told: tuple[Word, Fence, ev.RevokeAnswer]) -> None:
        word, fence, answer = told
        self._tell(ev.RevokeAnswered(self._clock.now, word.worker, fence, answer))

    def _revoked(self, word: Word, action: do.RevokeLease) -> ev.RevokeAnswer:
        """What the warden does to the word, and says."""
        if word.fence != action.fence or word.state in ("starting", "standby", "promoting"):
            return "stale"
        if word.state == "revoked":
            return "gone"
        if word.state == "leaving":
            return "dead"
        if word.state == "idle":
            # summed as the core does, so that both agree on the instant
            ripe_at = word.since + action.min_idle_s
            if action.mode == "if_idle" and ripe_at > self._clock.now:
                self._watch_idle(word)
                return "busy"
            if action.successor is not None:
                word.fence, word.client = action.successor, action.client
                self._becomes_idle(word)
                return "moved"
            word.state = "revoked"
            self._account(word.ground)
            return "gone"
        if action.mode == "if_idle":
            return "draining" if word.state == "draining" else "busy"
        word.state = "draining"
        return "draining"

    # -- jobs ----------------------------------------------------------------------------------

    def accept(self, lease: LeaseId, job: str) -> bool:
        """The worker takes the job, if the lease still holds."""
        word = self.words.get(lease.worker)
        if word is None or word.state != "idle" or word.fence != lease.fence:
            return False
        word.state, word.job, word.since = "busy", job, self._clock.now
        if word.reported_idle:
            word.reported_idle = False
            self._clock.send(word.news, self._tell_busy, (word, word.fence, word.since))
        self._enter(word.ground, BUSY)
        return True

    def _tell_busy(self, told: tuple[Word, Fence, float]) -> None:
        word, fence, since = told
        self._tell(ev.WorkerBusy(self._clock.now, word.worker, fence, since))

    def finish(self, lease: LeaseId, job: str) -> bool:
        """The job ends. True if its worker may be used again under the same lease."""
        word = self.words[lease.worker]
        if word.job != job:
            raise InternalError(f"job {job} ends on {lease.worker}, where {word.job!r} runs")
        word.job = ""
        if word.state == "busy":
            self._becomes_idle(word)
            return True
        word.state, word.since = "revoked", self._clock.now
        self._account(word.ground)
        self._clock.send(word.news, self._tell_ended, (word, word.fence))
        return False

    def _tell_ended(self, told: tuple[Word, Fence]) -> None:
        word, fence = told
        self._tell(ev.LeaseEnded(self._clock.now, word.worker, fence))

    def _becomes_idle(self, word: Word) -> None:
        word.state, word.since = "idle", self._clock.now
        word.reported_idle = False
        self._enter(word.ground, IDLE)
        self._watch_idle(word)

    def _watch_idle(self, word: Word) -> None:
        """The warden tells of idleness once it has lasted for the linger."""
        word.reported_idle = False
        linger_s = self._linger_s(word.ground.profile)
        self._clock.at(word.since + linger_s, self._look, (word, word.since, word.fence))

    def _look(self, seen: tuple[Word, float, Fence]) -> None:
        word, since, fence = seen
        if word.state == "idle" and word.since == since and word.fence == fence:
            word.reported_idle = True
            self._clock.send(word.news, self._tell_idle, (word, fence, since))

    def _tell_idle(self, told: tuple[Word, Fence, float]) -> None:
        word, fence, since = told
        self._tell(ev.WorkerIdle(self._clock.now, word.worker, fence, since))
