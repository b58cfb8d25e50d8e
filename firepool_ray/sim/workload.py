"""What is submitted and when: open-loop jobs, or sessions that wait for their own results.

Read by the engine. A workload can be run any number of times: ``jobs`` and ``sessions`` begin anew
with each call. Open loop: a job arrives when the trace says so. Closed loop: a session's next call
follows a pause after its last one has ended, so that a faster start shortens the whole session.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from firepool_ray.sim.traces import DEFAULT_PROFILE, DEFAULT_QUEUE, TraceJob


class Call(NamedTuple):
    """A session's job and when it is submitted; ``tag`` comes back when it has ended."""

    tag: int
    job: TraceJob


class Session(Protocol):
    """One caller's closed loop. Used once; never asked before ``begin_s``."""

    @property
    def begin_s(self) -> float: ...

    def begin(self) -> list[Call]:
        """The calls that wait for no other."""
        ...

    def ended(self, tag: int, at: float) -> list[Call]:
        """The calls that follow on this one's end."""
        ...

    def done(self) -> bool:
        """Nothing more will come."""
        ...


def _no_jobs() -> Iterator[TraceJob]:
    return iter(())


def _no_sessions() -> Iterator[Session]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs sorted by start, sessions sorted by begin; either may be empty."""

    jobs: Callable[[], Iterator[TraceJob]] = _no_jobs
    sessions: Callable[[], Iterator[Session]] = _no_sessions
    total: int | None = None  #: how many jobs there will be, if that is known


def open_loop(jobs: Iterable[TraceJob] | Callable[[], Iterator[TraceJob]]) -> Workload:
    """Jobs that arrive at their ``start_s``, in that order: a sequence, or what makes iterators."""
    if callable(jobs):
        return Workload(jobs=jobs)
    kept = list(jobs)
    kept.sort(key=lambda job: job.start_s)
    return Workload(jobs=lambda: iter(kept), total=len(kept))


def closed_loop(jobs: Iterable[TraceJob]) -> Workload:
    """The trace as one session per caller; its rows are held in memory."""
    by_caller: dict[tuple[str, str], list[TraceJob]] = {}
    total = 0
    for job in jobs:
        by_caller.setdefault((job.queue, job.caller), []).append(job)
        total += 1
    recorded = [sorted(rows, key=lambda job: job.start_s) for rows in by_caller.values()]
    recorded.sort(key=lambda rows: rows[0].start_s)

    def sessions() -> Iterator[Session]:
        return (RecordedSession(rows) for rows in recorded)

    return Workload(sessions=sessions, total=total)


class RecordedSession:
    """A caller's rows replayed by cause: a call waits for all that had ended when it began.

    It is submitted as long after the last of them as it was in the trace. Calls that overlapped
    there depend on the same predecessors, so they may overlap here: real concurrency is kept.
    """

    def __init__(self, rows: list[TraceJob]) -> None:
        self._rows = rows
        self.begin_s = rows[0].start_s
        order = sorted(range(len(rows)), key=lambda i: rows[i].start_s + rows[i].duration_s)
        ends = [rows[i].start_s + rows[i].duration_s for i in order]
        #: rank of each row among the trace's ends
        self._rank = {row: rank for rank, row in enumerate(order)}
        #: how many of the trace's ends each row waits for, and how long after the last of them
        self._needs = [_ended_before(number, rows, order, ends) for number in range(len(rows))]
        self._pause_s = [
            row.start_s - (ends[need - 1] if need else self.begin_s)
            for row, need in zip(rows, self._needs, strict=True)
        ]
        self._ended: list[float | None] = [None] * len(rows)  #: by rank
        self._prefix = 0  #: so many ranks have ended, without a hole
        self._prefix_at = self.begin_s
        self._next = 0  #: the first row not yet submitted

    def begin(self) -> list[Call]:
        return self._ready()

    def ended(self, tag: int, at: float) -> list[Call]:
        self._ended[self._rank[tag]] = at
        return self._ready()

    def done(self) -> bool:
        return self._prefix == len(self._rows)

    def _ready(self) -> list[Call]:
        calls: list[Call] = []
        while True:
            while self._next < len(self._rows) and self._needs[self._next] <= self._prefix:
                # a need is met exactly when the prefix reaches it, so its last end is known
                row = self._rows[self._next]
                at = self._prefix_at + self._pause_s[self._next]
                calls.append(Call(self._next, row._replace(start_s=at)))
                self._next += 1
            ended = self._ended[self._prefix] if self._prefix < len(self._rows) else None
            if ended is None:
                return calls
            self._prefix_at = max(self._prefix_at, ended)
            self._prefix += 1


def _ended_before(number: int, rows: list[TraceJob], order: list[int], ends: list[float]) -> int:
    """How many rows had ended when this one began; among those that end just then, earlier ones."""
    start_s = rows[number].start_s
    count = bisect_left(ends, start_s)
    while count < len(ends) and ends[count] == start_s and order[count] < number:
        count += 1
    return count


class Step(NamedTuple):
    """Jobs submitted together, ``pause_s`` after the last of the step before has ended."""

    pause_s: float
    durations_s: tuple[float, ...]


class LoopSession:
    """Steps one after the other: an agent has one job in each, an RL loop a burst."""

    def __init__(
        self,
        caller: str,
        begin_s: float,
        steps: Iterable[Step],
        profile: str = DEFAULT_PROFILE,
        queue: str = DEFAULT_QUEUE,
        gpus: float = 1.0,
    ) -> None:
        self.caller = caller
        self.begin_s = begin_s
        self._steps = iter(steps)
        self._kind = (profile, queue, gpus)
        self._running = 0
        self._tag = 0
        self._done = False

    def begin(self) -> list[Call]:
        return self._step(self.begin_s)

    def ended(self, tag: int, at: float) -> list[Call]:
        self._running -= 1
        return self._step(at) if not self._running else []

    def done(self) -> bool:
        return self._done

    def _step(self, at: float) -> list[Call]:
        step = next(self._steps, None)
        if step is None:
            self._done = True
            return []
        self._running = len(step.durations_s)
        if not self._running:
            return self._step(at + step.pause_s)
        calls = []
        for duration_s in step.durations_s:
            job = TraceJob(self.caller, at + step.pause_s, duration_s, *self._kind)
            calls.append(Call(self._tag, job))
            self._tag += 1
        return calls


def together(*loads: Workload) -> Workload:
    """Several workloads at once."""
    if len(loads) == 1:
        return loads[0]

    def jobs() -> Iterator[TraceJob]:
        return heapq.merge(*(load.jobs() for load in loads), key=lambda job: job.start_s)

    def sessions() -> Iterator[Session]:
        return heapq.merge(
            *(load.sessions() for load in loads), key=lambda session: session.begin_s
        )

    totals = [load.total for load in loads]
    known = [total for total in totals if total is not None]
    return Workload(jobs, sessions, sum(known) if len(known) == len(totals) else None)


def unrolled(load: Workload) -> Workload:
    """The same load as open-loop jobs: what its sessions would do if every start took no time."""
    return Workload(jobs=lambda: _unroll(load), total=load.total)


def _unroll(load: Workload) -> Iterator[TraceJob]:
    """In the order of starts; holds only sessions that have begun and not ended."""
    return heapq.merge(load.jobs(), _played(load.sessions()), key=lambda job: job.start_s)


def _played(sessions: Iterator[Session]) -> Iterator[TraceJob]:
    #: (time, 0 for an end and 1 for a start, serial): ends first, since a start may follow on one
    planned: list[tuple[float, int, int, Session, Call]] = []
    serial = 0
    coming = next(sessions, None)
    while planned or coming is not None:
        if coming is not None and (not planned or coming.begin_s <= planned[0][0]):
            session, calls = coming, coming.begin()
            coming = next(sessions, None)
        else:
            at, is_start, _, session, call = heapq.heappop(planned)
            if is_start:
                yield call.job
                serial += 1
                heapq.heappush(planned, (at + call.job.duration_s, 0, serial, session, call))
                continue
            calls = session.ended(call.tag, at)
        for following in calls:
            serial += 1
            heapq.heappush(planned, (following.job.start_s, 1, serial, session, following))
