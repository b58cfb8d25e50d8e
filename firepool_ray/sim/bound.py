"""The least that a trace could have cost, had all of it been known beforehand.

Called by ``sim.report`` and ``sim.figures*`` so that each policy is shown as cost / bound. Works
on job intervals alone: no machine, no policy, no clock. scipy is imported only where a linear
programme is solved.

Cost is in GPU-seconds, as in ``sim.engine``: every second that a worker is held idle, plus the
price of every start that is not warm, times the worker's GPUs. Jobs run at the times given. Each
start of a job then has three ways:

* *held*: the worker of an earlier job of its caller was kept idle since: the gap between;
* *promoted* (with a standby): a lane was kept reserved since: ``h2`` times the gap, plus P;
* *cold*: C.

**Which end belongs to which start.** What a gap costs, ``min(gap, h2 * gap + P, C)``, is concave
in its length. Of two ends a < b and two starts c < d, the nested pairs (b, c), (a, d) then never
cost more than the crossed (a, c), (b, d), and a further pair never costs more than C. So the last
freed is reused first, per caller, profile and size, and starts that find no freed worker are
*compulsory*: C each, whatever the policy.

**What is assumed.** Jobs run at the times given, whoever serves them. A run in which jobs wait for
their starts has a schedule of its own, later ends and so shorter gaps, and may cost less than the
bound of the trace: compare it with the bound of the schedule that it ran. Nothing is charged
after a caller's last job, as it can be released at once. Warming a worker before its next job
costs C as well, so it needs no way of its own.
"""

from __future__ import annotations

import heapq
import importlib
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from firepool_ray.errors import InternalError, UsageError
from firepool_ray.sim.traces import TraceJob

Floats = npt.NDArray[np.float64]
#: A cap that changes: (from this second on, so many GPUs), sorted; the first holds before it too.
Steps = Sequence[tuple[float, float]]
_NONE = -1  #: no earlier job: a compulsory start
_SLACK = 1e-9


class Gap(NamedTuple):
    """A worker of one caller and profile lies idle from one of its jobs to the next."""

    caller: str
    profile: str
    begin_s: float
    end_s: float
    gpus: float


class Standby(NamedTuple):
    """The third state: a reserved lane with a standby that is bound to nobody."""

    promote_s: float  #: price of a promotion, in seconds of the lane
    h2: float = 1.0  #: price of a second of standby, as a part of an idle one; 0 to 1


class Key(NamedTuple):
    """Workers of one key may follow each other."""

    queue: str
    caller: str
    profile: str
    gpus: float  #: 1 where a job has none: a lane is what it is counted in


@dataclass(frozen=True, slots=True)
class Pairing:
    """The jobs of a trace and, for each, the one whose worker it would reuse. 40 bytes a job."""

    keys: list[Key] = field(default_factory=list)
    key: array[int] = field(default_factory=lambda: array("l"))  #: per job: index into ``keys``
    begin: array[float] = field(default_factory=lambda: array("d"))  #: sorted
    end: array[float] = field(default_factory=lambda: array("d"))
    #: per job: index of the job before it on its worker, or -1
    before: array[int] = field(default_factory=lambda: array("l"))

    @property
    def jobs(self) -> int:
        return len(self.begin)

    @property
    def gaps(self) -> list[Gap]:
        """The idle gaps, in the order in which they end."""
        found = []
        for job, before in enumerate(self.before):
            if before != _NONE:
                key = self.keys[self.key[job]]
                begin, end = self.end[before], self.begin[job]
                found.append(Gap(key.caller, key.profile, begin, end, key.gpus))
        return found

    @property
    def compulsory(self) -> float:
        """Starts, weighted by GPUs, that no idle worker of the caller could have served."""
        return float(self.gpus()[~self.follows()].sum())

    def gpus(self) -> Floats:
        """Per job."""
        sizes = np.array([key.gpus for key in self.keys], dtype=float)
        return sizes[np.array(self.key, dtype=np.intp)]

    def follows(self) -> npt.NDArray[np.bool_]:
        """Per job: has it a job before it on its worker?"""
        return np.asarray(np.array(self.before, dtype=np.intp) != _NONE)

    def lengths_s(self) -> Floats:
        """Per job: the idle gap before it; ``inf`` for a compulsory start."""
        ends = np.array(self.end, dtype=float)
        before = np.array(self.before, dtype=np.intp)
        gaps = np.full(self.jobs, math.inf)
        follows = before != _NONE
        gaps[follows] = np.array(self.begin, dtype=float)[follows] - ends[before[follows]]
        return gaps


def pair(jobs: Iterable[TraceJob]) -> Pairing:
    """Pair ends and starts, last in first out. ``jobs`` are sorted by ``start_s``.

    Beside the result it needs memory per caller only. A job that begins when another ends may
    have its worker. Raises ``UsageError`` if the order is broken.
    """
    pairing = Pairing()
    number: dict[Key, int] = {}
    running: list[list[tuple[float, int]]] = []  # per key a heap of (end, job)
    freed: list[list[int]] = []  # per key a stack of jobs, the last freed on top
    last = -math.inf
    for job in jobs:
        if job.start_s < last:
            raise UsageError(
                f"jobs must be sorted by start_s: {job.start_s} of {job.caller!r} follows {last}"
            )
        last = job.start_s
        key = Key(job.queue, job.caller, job.profile, job.gpus if job.gpus > 0 else 1.0)
        at = number.get(key)
        if at is None:
            at = number[key] = len(pairing.keys)
            pairing.keys.append(key)
            running.append([])
            freed.append([])
        while running[at] and running[at][0][0] <= job.start_s:
            freed[at].append(heapq.heappop(running[at])[1])
        index = pairing.jobs
        end = job.start_s + job.duration_s
        pairing.key.append(at)
        pairing.before.append(freed[at].pop() if freed[at] else _NONE)
        pairing.begin.append(job.start_s)
        pairing.end.append(end)
        heapq.heappush(running[at], (end, index))
    return pairing


def uncapped(pairing: Pairing, cold_s: float, standby: Standby | None = None) -> float:
    """GPU-seconds without a cap: the sum of min(gap, C) over gaps, and C per compulsory start.

    With ``standby``: min(gap, h2 * gap + P, C). There a lane stays with the caller that left it;
    where lanes serve whoever comes, ``pooled`` is the bound.
    """
    gaps = pairing.lengths_s()
    price = np.minimum(gaps, cold_s)
    if standby is not None:
        known = np.isfinite(gaps)
        price[known] = np.minimum(price[known], standby.h2 * gaps[known] + standby.promote_s)
    return float(price @ pairing.gpus())


def capped(pairing: Pairing, cap_gpus: float | Steps, cold_s: float) -> float:
    """GPU-seconds where busy and held GPUs together never exceed the cap: an interval programme.

    Hold x_i of gap i: minimise sum g_i (gap_i x_i + C (1 - x_i)) subject to, at each time, sum of
    g_i x_i over the gaps that cover it <= cap - busy, 0 <= x_i <= 1. A gap covers consecutive
    rows, so with equal GPU counts a corner of it is integral; with unequal ones it is still a
    lower bound. Nested pairs need no more room than crossed ones, so the pairing stays best.
    Gaps of C and more are never worth holding.

    Jobs run at their times even where they alone exceed the cap (there nothing is held): a trace
    cannot run under such a cap as it is given. Raises ``UsageError`` without scipy.
    """
    gaps, gpus = pairing.lengths_s(), pairing.gpus()
    held = np.flatnonzero(gaps < cold_s)
    saving = (cold_s - gaps[held]) * gpus[held]
    everything_cold = float(gpus.sum()) * cold_s
    rows = _rows(pairing, held, gpus, cap_gpus)
    if not rows.limit.size:
        return everything_cold - float(saving.sum())
    sparse, optimize = _scipy("sparse"), _scipy("optimize")
    counts = rows.last - rows.first
    variable = np.repeat(np.arange(held.size), counts)
    row = np.concatenate([np.arange(a, b) for a, b in zip(rows.first, rows.last, strict=True)])
    matrix = sparse.csr_matrix(
        (gpus[held][variable], (row, variable)), shape=(rows.limit.size, held.size)
    )
    solved = _solve(optimize, -saving, A_ub=matrix, b_ub=rows.limit, bounds=(0, 1))
    return everything_cold + float(solved.fun)


def pooled(pairing: Pairing, cold_s: float, standby: Standby) -> float:
    """GPU-seconds without a cap, where a released lane may be promoted for any caller.

    Lanes are of one profile and size; a lane that nobody released costs C. Whether its next
    standby is ready yet is not asked, which only lowers the bound. Each end gives its worker to
    the next start of its caller (held), or its lane to the stock (z lanes, h2 a second each), or
    up; each start takes a held worker, or a lane of the stock (P), or starts cold (C). A network,
    so a corner is integral. Raises ``UsageError`` without scipy, or for h2 outside 0 to 1 (held
    would be cheaper than reserved, and the pairing no longer best).
    """
    if not 0.0 <= standby.h2 <= 1.0:
        raise UsageError(f"h2 must be between 0 and 1, not {standby.h2}")
    gpus = pairing.gpus()
    everything_cold = float(gpus.sum()) * cold_s
    if standby.promote_s >= cold_s:
        return uncapped(pairing, cold_s)
    kinds: dict[tuple[str, float], list[int]] = {}
    for job, key in enumerate(pairing.key):
        kinds.setdefault((pairing.keys[key].profile, pairing.keys[key].gpus), []).append(job)
    gaps = pairing.lengths_s()
    saved = 0.0
    for (_, size), jobs in kinds.items():
        saved += size * _pooled_saving(pairing, np.array(jobs), gaps, cold_s, standby)
    return everything_cold - saved


class _Rows(NamedTuple):
    """Where the cap binds. Variable v is in the rows first[v] to last[v], without the last."""

    limit: Floats
    first: npt.NDArray[np.intp]
    last: npt.NDArray[np.intp]


def _rows(
    pairing: Pairing, held: npt.NDArray[np.intp], gpus: Floats, cap_gpus: float | Steps
) -> _Rows:
    """One row per stretch between events, without those that another one implies.

    Row k implies row j if what j covers beyond k fits into the difference of their limits: as
    when a held worker begins its job, which takes its GPUs from the limit. Only neighbours are
    compared, and rows in which all of it fits are dropped.
    """
    begin, end = np.array(pairing.begin), np.array(pairing.end)
    before = np.array(pairing.before, dtype=np.intp)
    opened, closed = end[before[held]], begin[held]
    steps = [(0.0, float(cap_gpus))] if isinstance(cap_gpus, (int, float)) else list(cap_gpus)
    if not steps or steps != sorted(steps, key=lambda step: step[0]):
        raise UsageError("a changing cap is a sorted list of (second, GPUs), not empty")
    cap_at, cap_value = np.array([s[0] for s in steps]), np.array([s[1] for s in steps])
    times = np.unique(np.concatenate([begin, end, cap_at]))
    change = np.zeros(times.size)
    np.add.at(change, np.searchsorted(times, begin), gpus)
    np.add.at(change, np.searchsorted(times, end), -gpus)
    cap = cap_value[np.maximum(0, np.searchsorted(cap_at, times, side="right") - 1)]
    limit = np.maximum(0.0, cap - np.cumsum(change))
    if gpus.size and np.all(gpus == gpus[0]):
        limit = np.floor(limit / gpus[0] + _SLACK) * gpus[0]  # whole workers only
    first, last = np.searchsorted(times, opened), np.searchsorted(times, closed)
    covering = np.zeros(times.size + 1)
    np.add.at(covering, first, gpus[held])
    np.add.at(covering, last, -gpus[held])
    binding = np.cumsum(covering)[:-1] > limit + _SLACK
    kept = _not_implied(limit, first, last, gpus[held])
    kept = kept[binding[kept]]
    return _Rows(limit[kept], np.searchsorted(kept, first), np.searchsorted(kept, last))


def _not_implied(
    limit: Floats, first: npt.NDArray[np.intp], last: npt.NDArray[np.intp], gpus: Floats
) -> npt.NDArray[np.intp]:
    """Indices of the rows that no neighbour implies."""
    opening: list[list[int]] = [[] for _ in limit]
    closing: list[list[int]] = [[] for _ in limit]
    for variable, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        if a < b:
            opening[a].append(variable)
            closing[b].append(variable)
    kept: list[int] = []
    added = removed = 0.0  # GPUs of gaps that this row has and the last kept one has not; reverse
    for row in range(limit.size):
        for variable in closing[row]:
            if first[variable] > kept[-1]:
                added -= gpus[variable]
            else:
                removed += gpus[variable]
        added += sum(gpus[variable] for variable in opening[row])
        if kept and limit[kept[-1]] + added <= limit[row] + _SLACK:
            continue
        if kept and limit[row] + removed <= limit[kept[-1]] + _SLACK:
            kept.pop()
        kept.append(row)
        added = removed = 0.0
    return np.array(kept, dtype=np.intp)


def _pooled_saving(
    pairing: Pairing, jobs: npt.NDArray[np.intp], gaps: Floats, cold_s: float, standby: Standby
) -> float:
    """What holding and reserving saves against starting all of ``jobs`` cold, per GPU.

    Columns: held x per job, given y per job, taken b per job, stock z between events.
    """
    sparse, optimize = _scipy("sparse"), _scipy("optimize")
    n = jobs.size
    begin, end = np.array(pairing.begin)[jobs], np.array(pairing.end)[jobs]
    position = np.full(pairing.jobs, _NONE, dtype=np.intp)
    position[jobs] = np.arange(n)
    before = np.array(pairing.before, dtype=np.intp)[jobs]
    followed = np.flatnonzero(before != _NONE)
    times = np.unique(np.concatenate([begin, end]))
    m = times.size
    x, y, b, z = np.arange(n), n + np.arange(n), 2 * n + np.arange(n), 3 * n + np.arange(m)
    cost = np.zeros(3 * n + m)
    useful = gaps[jobs] < cold_s
    cost[x[useful]] = gaps[jobs][useful] - cold_s
    cost[b] = standby.promote_s - cold_s
    cost[z[:-1]] = standby.h2 * np.diff(times)
    upper = np.ones(3 * n + m)
    upper[x[~useful]] = 0.0
    upper[z] = np.inf
    # A start is served once: x + b <= 1. An end is used once: y + x of the next <= 1.
    once = sparse.csr_matrix(
        (
            np.ones(3 * n + followed.size),
            (
                np.concatenate([x, x, n + x, n + position[before[followed]]]),
                np.concatenate([x, b, y, x[followed]]),
            ),
        ),
        shape=(2 * n, cost.size),
    )
    # The stock after an event: what was there, and what came, and not what went.
    at = np.arange(m)
    stock = sparse.csr_matrix(
        (
            np.concatenate([np.ones(m), -np.ones(m - 1), -np.ones(n), np.ones(n)]),
            (
                np.concatenate(
                    [at, at[1:], np.searchsorted(times, end), np.searchsorted(times, begin)]
                ),
                np.concatenate([z, z[:-1], y, b]),
            ),
        ),
        shape=(m, cost.size),
    )
    matrix = sparse.vstack([once, stock]).tocsr()
    room = np.concatenate([np.ones(2 * n), np.zeros(m)])
    bounds = np.column_stack([np.zeros(cost.size), upper])
    return -float(_solve(optimize, cost, A_ub=matrix, b_ub=room, bounds=bounds).fun)


def _solve(optimize: Any, cost: Floats, **programme: Any) -> Any:
    solved = optimize.linprog(cost, method="highs", **programme)
    if solved.status != 0:
        raise InternalError(f"the linear programme of the bound was not solved: {solved.message}")
    return solved


def _scipy(part: str) -> Any:
    try:
        return importlib.import_module(f"scipy.{part}")
    except ImportError as error:
        raise UsageError(
            "this bound needs scipy: pip install 'firepool-ray[sim]' (or [plots])"
        ) from error
