"""The pump's records, and the indexes derived from them.

Only ``pump`` and ``pump_polling`` touch these. Jobs and leases are the truth; FIFOs and free
lists follow from them (``rebuild`` derives them anew, see ``Pump.recover``).
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile
from typing import Literal

from firepool_ray.core.model import JobClass, LeaseId, ReuseKey, Source

JobState = Literal["blocked", "waiting", "running", "stopping", "settling", "ended"]

Cause = Literal[
    "ready", "dispatch", "stop", "lose", "poll", "hand_back", "resend", "finish", "withdraw"
]

#: Every legal move of a job. What is not here raises ``IllegalTransition``.
JOB_MOVES: dict[tuple[JobState, Cause], JobState] = {
    ("blocked", "ready"): "waiting",  # its references exist
    ("blocked", "withdraw"): "ended",  # cancelled, aborted, out of time, pool gone
    ("waiting", "dispatch"): "running",  # a free lease of its reuse key
    ("waiting", "withdraw"): "ended",  # cancelled, rejected, out of time, pool gone
    ("running", "finish"): "ended",  # the reply came
    ("running", "hand_back"): "waiting",  # refused: the lease did not hold any more
    ("running", "resend"): "running",  # the worker lacks the code
    ("running", "stop"): "stopping",  # cancel
    ("running", "lose"): "settling",  # the call broke
    ("stopping", "finish"): "ended",  # the reply came, or: refused, so it never ran
    ("stopping", "stop"): "stopping",  # the cancel had not reached it: again
    ("stopping", "lose"): "settling",  # the call broke
    ("settling", "poll"): "settling",  # it still runs; or it has finished: replay
    ("settling", "stop"): "settling",  # cancel while its reply is sought
    ("settling", "hand_back"): "waiting",  # it never started, or it may be retried
    ("settling", "finish"): "ended",  # replayed, or lost for good
}


class Job:
    __slots__ = (
        "alarm_at",
        "arrived_at",
        "cancel_asked",
        "dispatched_at",
        "id",
        "job_class",
        "lease",
        "order",
        "queue_deadline",
        "redeliveries",
        "resent",
        "retries_left",
        "settle_delay_s",
        "state",
        "stop_delay_s",
        "stopped",
        "timeout_s",
    )

    def __init__(
        self,
        id: str,
        job_class: Class,
        order: int,
        arrived_at: float,
        state: JobState,
        queue_deadline: float,
        timeout_s: float,
        retries_left: int,
    ) -> None:
        self.id = id
        self.job_class = job_class
        self.order = order  #: place in its FIFO; kept when it is handed back
        self.arrived_at = arrived_at
        self.state: JobState = state
        self.queue_deadline = queue_deadline
        self.timeout_s = timeout_s
        self.retries_left = retries_left
        self.alarm_at = float("inf")  #: its one timer: out of time, poll again or stop again
        self.redeliveries = 0  #: deliveries that provably started nothing
        self.lease: Lease | None = None  #: set exactly while running, stopping or settling
        self.dispatched_at = 0.0
        self.cancel_asked = False
        self.resent = False  #: sent again with its code on this lease
        self.stop_delay_s = 0.0
        self.settle_delay_s = 0.0
        self.stopped = ""  #: why its worker is being killed, as far as the warden has said


class Lease:
    __slots__ = ("id", "job", "key", "revoked", "source", "turn")

    def __init__(self, id: LeaseId, key: Key, source: Source) -> None:
        self.id = id
        self.key = key
        self.source: Source = source  #: the grant's until the first job ran, "warm" from then on
        self.job: Job | None = None  #: the one outstanding call
        self.revoked = False  #: forgotten once its job has ended
        self.turn = 0  #: the call of ``handle`` that last dispatched to it


class Class:
    __slots__ = ("blocked", "fifo", "id", "key", "stated")

    def __init__(self, id: JobClass, key: Key) -> None:
        self.id = id
        self.key = key
        self.fifo: OrderedDict[str, Job] = OrderedDict()
        self.blocked = 0  #: jobs that wait for references, not in ``fifo``
        self.stated = 0  #: the demand that the last sync stated


class Key:
    __slots__ = ("classes", "free", "id", "leases", "mean_s")

    def __init__(self, id: ReuseKey) -> None:
        self.id = id
        self.classes: dict[JobClass, Class] = {}
        self.leases: dict[LeaseId, Lease] = {}
        self.free: list[Lease] = []  #: last freed at the end, used first: its caches are warm
        self.mean_s: float | None = None  #: decaying mean run time; None before the first job

    def observe(self, ran_s: float) -> None:
        self.mean_s = ran_s if self.mean_s is None else 0.8 * self.mean_s + 0.2 * ran_s

    def drain_s(self, at: float) -> float:
        """How long the held leases need for all that waits; inf without leases or experience.

        A running job counts at least the time it has already run, so that one that hangs lets the
        estimate grow without end.
        """
        if not self.leases or self.mean_s is None:
            return float("inf")
        total_s = self.mean_s * sum(len(cls.fifo) for cls in self.classes.values())
        for lease in self.leases.values():
            if lease.job is not None:
                ran_s = max(0.0, at - lease.job.dispatched_at)
                total_s += max(self.mean_s - ran_s, ran_s)
        return total_s / len(self.leases)

    def head(self, window_s: float) -> Class | None:
        """The class whose first job goes next: by arrival, each step of priority worth a window."""
        best: Class | None = None
        best_rank = (0.0, 0)
        for cls in self.classes.values():
            if cls.fifo:
                job = next(iter(cls.fifo.values()))
                rank = (job.arrived_at - cls.id.priority * window_s, job.order)
                if best is None or rank < best_rank:
                    best, best_rank = cls, rank
        return best


class Book:
    """All records, and the only functions that keep the indexes in step with them."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}  #: until they end
        self.leases: dict[LeaseId, Lease] = {}  #: all held, in order of arrival
        self.keys: dict[ReuseKey, Key] = {}
        self.waiting = 0  #: jobs in FIFOs
        self.blocked = 0
        self.touched: dict[JobClass, Class] = {}  #: whose FIFO changed since the last sync

    def key_of(self, id: ReuseKey) -> Key:
        key = self.keys.get(id)
        if key is None:
            key = self.keys[id] = Key(id)
        return key

    def class_of(self, id: JobClass) -> Class:
        key = self.key_of(id.key)
        cls = key.classes.get(id)
        if cls is None:
            cls = key.classes[id] = Class(id, key)
        return cls

    def enter(self, job: Job) -> None:
        """A job that waits takes its place: behind its elders, before its juniors."""
        cls = job.job_class
        if job.state == "blocked":
            cls.blocked += 1
            self.blocked += 1
            return
        fifo = cls.fifo
        handed_back = bool(fifo) and job.order < fifo[next(reversed(fifo))].order
        fifo[job.id] = job
        if handed_back:
            elders = list(takewhile(lambda id: fifo[id].order < job.order, fifo))
            for id in (job.id, *reversed(elders)):
                fifo.move_to_end(id, last=False)
        self.waiting += 1
        self.touched[cls.id] = cls

    def leave(self, job: Job) -> None:
        """The opposite of ``enter``, before the job's state changes."""
        if job.state == "blocked":
            job.job_class.blocked -= 1
            self.blocked -= 1
        else:
            del job.job_class.fifo[job.id]
            self.waiting -= 1
            self.touched[job.job_class.id] = job.job_class

    def add_lease(self, id: LeaseId, key_id: ReuseKey, source: Source) -> Lease:
        key = self.key_of(key_id)
        lease = Lease(id, key, source)
        self.leases[id] = key.leases[id] = lease
        key.free.append(lease)
        return lease

    def drop_lease(self, lease: Lease) -> None:
        self.leases.pop(lease.id, None)
        lease.key.leases.pop(lease.id, None)
        if lease in lease.key.free:
            lease.key.free.remove(lease)

    def prune(self) -> None:
        """Forget classes that no job belongs to, and keys without classes or leases."""
        for key in list(self.keys.values()):
            in_use = {lease.job.job_class.id for lease in key.leases.values() if lease.job}
            for cls in list(key.classes.values()):
                if not (cls.fifo or cls.blocked or cls.stated or cls.id in in_use):
                    del key.classes[cls.id]
            if not key.classes and not key.leases:
                del self.keys[key.id]

    def undo(self, turn: int) -> None:
        """Take back every dispatch of one turn, whole or half done; drop pointers to ended jobs."""
        for lease in self.leases.values():
            job = lease.job
            if job is not None and (job.state == "ended" or lease.turn == turn):
                lease.job = None
        for job in self.jobs.values():
            called = job.lease is not None and job.lease.job is job
            if job.state in ("running", "stopping", "settling") and not called:
                job.state = "waiting"
            if job.state in ("blocked", "waiting"):
                if job.lease is not None and job.lease.job is job:
                    job.lease.job = None
                job.lease = None

    def rebuild(self) -> None:
        """Derive every index anew from jobs and leases."""
        self.keys = {key.id: key for key in self._referenced_keys()}
        for key in self.keys.values():
            key.leases.clear()
            key.free.clear()
            for cls in key.classes.values():
                cls.fifo.clear()
                cls.blocked = 0
        self.waiting = self.blocked = 0
        for job in sorted(self.jobs.values(), key=lambda job: job.order):
            job.job_class.key.classes[job.job_class.id] = job.job_class
            if job.state in ("blocked", "waiting"):
                self.enter(job)
        for lease in self.leases.values():
            lease.key.leases[lease.id] = lease
            if lease.job is None:
                lease.key.free.append(lease)

    def _referenced_keys(self) -> list[Key]:
        keys = {id(key): key for key in self.keys.values()}
        for job in self.jobs.values():
            keys[id(job.job_class.key)] = job.job_class.key
        for lease in self.leases.values():
            keys[id(lease.key)] = lease.key
        return list(keys.values())
