"""What the figures share: their form, pools to measure in, and schedules as they were run.

Used by ``sim.figures*`` only. Every figure derives its load from the files it is given or from a
seeded generator; no number in here was chosen for a score on one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firepool_ray.core.model import PoolSpec, ProfileSpec, QueueSpec
from firepool_ray.errors import TraceError
from firepool_ray.sim import policies, traces, workload
from firepool_ray.sim.costs import Constant, Costs, Empirical
from firepool_ray.sim.engine import Setup, simulate
from firepool_ray.sim.result import Result
from firepool_ray.sim.traces import TraceJob
from firepool_ray.sim.workload import Call, Session, Workload

INF = float("inf")
#: More lanes than any of the loads wants.
MANY = 100_000
#: Nobody lacks lanes in an uncapped pool, so nobody is relieved of one.
NO_WINDOW_S = 1e6
#: Published times of a pod with a base model: a start, and a handover to a process that waits.
PUBLISHED_COLD_S = 51.0
PUBLISHED_PROMOTE_S = 0.94
#: One way between client, controller and worker, where latencies are compared.
MESSAGE_S = 0.001


@dataclass(frozen=True, slots=True)
class Figure:
    """One promise, measured."""

    name: str
    values: dict[str, float]
    reach: str  #: the promise, in words
    ok: bool
    detail: dict[str, Any] = field(default_factory=dict)  #: for JSON: what explains it

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is not finite is None."""
        return {
            "name": self.name,
            "values": _finite(self.values),
            "reach": self.reach,
            "ok": self.ok,
            "detail": _finite(self.detail),
        }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None  # numpy's own become Python's
    return value


class Folder:
    """Where the traces lie. Each is read once."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[tuple[str, str], list[TraceJob]] = {}
        self._cold: Empirical | None = None

    def file(self, name: str) -> Path:
        if self._path is None:
            raise TraceError(f"this figure needs a folder that holds {name}")
        return self._path / name

    def cold(self) -> Empirical:
        if self._cold is None:
            self._cold = Empirical.read(self.file("cold_start_s.csv"))
        return self._cold

    def image(self) -> list[TraceJob]:
        """Image jobs at the times recorded, by start."""
        return self._read("image_jobs.csv", {})

    def agents(self, seed: int, tool: str = "") -> list[TraceJob]:
        """Sessions that all begin at 0, begun at random within twice the longest one's length."""
        rows = self._read("agent_tool_calls.csv", {"tool": tool} if tool else {})
        longest_s = max((job.start_s + job.duration_s for job in rows), default=0.0)
        where = {"tool": tool} if tool else {}
        path = self.file("agent_tool_calls.csv")
        return list(traces.read(path, where=where, spread_s=2.0 * longest_s, seed=seed))

    def _read(self, name: str, where: dict[str, str]) -> list[TraceJob]:
        key = (name, str(where))
        if key not in self._rows:
            self._rows[key] = list(traces.read(self.file(name), where=where, sort=True))
            if not self._rows[key]:
                raise TraceError(f"{self.file(name)}: no rows are selected")
        return self._rows[key]


# ---------------------------------------------------------------------- pools


def pool(
    *,
    cold_s: float,
    standbys: int = 0,
    lane_keep_s: float | None = 0.0,
    max_lanes: int = MANY,
    min_lanes: int = 0,
    queues: Iterable[QueueSpec] = (QueueSpec("default"),),
    window_s: float = 5.0,
    profile: str = traces.DEFAULT_PROFILE,
) -> PoolSpec:
    """A pool of one profile with one GPU a lane. As given: every start is warm or cold."""
    kind = ProfileSpec(
        profile,
        gpus=1.0,
        standbys=standbys,
        min_lanes=min_lanes,
        max_lanes=max_lanes,
        lane_keep_s=lane_keep_s,
        start_cost_s=cold_s,
        grow_cost_s=0.0,
    )
    # Refills are not what is measured: the bucket keeps up.
    return PoolSpec(
        (kind,), tuple(queues), window_s=window_s, refill_rate_per_s=20.0, refill_burst=100
    )


def published() -> Costs:
    return Costs(
        cold=Constant(PUBLISHED_COLD_S),
        promote=Constant(PUBLISHED_PROMOTE_S),
        message=Constant(MESSAGE_S),
    )


# ---------------------------------------------------------------------- runs


@dataclass(slots=True)
class Seen:
    """The schedule that a run came to."""

    jobs: list[TraceJob] = field(default_factory=list)  #: when each really ran
    waits: list[tuple[TraceJob, float]] = field(
        default_factory=list
    )  #: as submitted; start latency

    def schedule(self) -> list[TraceJob]:
        return sorted(self.jobs, key=lambda job: job.start_s)


@dataclass(frozen=True, slots=True)
class Run:
    result: Result
    seen: Seen


def run(
    policy: str,
    spec: PoolSpec,
    costs: Costs,
    load: Workload,
    *,
    seed: int = 0,
    closing: bool = False,
    h2: float = 1.0,
) -> Run:
    """Simulate a load of sessions under a policy by name, and keep what really ran."""
    seen = Seen()
    chosen, objects = policies.choose(spec, policy)
    setup = Setup(chosen, costs, seed, objects, closing, h2)
    return Run(simulate(setup, watched(load, seen)), seen)


class OpenSession:
    """A caller's recorded jobs at the times recorded, whatever becomes of the earlier ones."""

    def __init__(self, rows: list[TraceJob]) -> None:
        self._rows = rows
        self.begin_s = rows[0].start_s
        self._left = len(rows)

    def begin(self) -> list[Call]:
        return [Call(tag, row) for tag, row in enumerate(self._rows)]

    def ended(self, tag: int, at: float) -> list[Call]:
        self._left -= 1
        return []

    def done(self) -> bool:
        return not self._left


def open_sessions(jobs: Iterable[TraceJob]) -> Workload:
    """An open-loop trace as one session per caller, so that ``watched`` can follow it."""
    by_caller: dict[tuple[str, str], list[TraceJob]] = {}
    for job in jobs:
        by_caller.setdefault((job.queue, job.caller), []).append(job)
    rows = sorted(by_caller.values(), key=lambda rows: rows[0].start_s)
    return Workload(
        sessions=lambda: (OpenSession(of_one) for of_one in rows),
        total=sum(len(of_one) for of_one in rows),
    )


def load_of(jobs: Iterable[TraceJob], *, closed: bool) -> Workload:
    return workload.closed_loop(jobs) if closed else open_sessions(jobs)


class _Watched:
    """A session whose calls and ends are noted."""

    def __init__(self, session: Session, seen: Seen) -> None:
        self._session = session
        self._seen = seen
        self._open: dict[int, TraceJob] = {}

    @property
    def begin_s(self) -> float:
        return self._session.begin_s

    def begin(self) -> list[Call]:
        return self._note(self._session.begin())

    def ended(self, tag: int, at: float) -> list[Call]:
        job = self._open.pop(tag)
        began = max(job.start_s, at - job.duration_s)
        self._seen.jobs.append(job._replace(start_s=began))
        self._seen.waits.append((job, began - job.start_s))
        return self._note(self._session.ended(tag, at))

    def done(self) -> bool:
        return self._session.done()

    def _note(self, calls: list[Call]) -> list[Call]:
        self._open.update((call.tag, call.job) for call in calls)
        return calls


def watched(load: Workload, seen: Seen) -> Workload:
    """The same sessions; ``seen`` fills as their jobs end."""

    def sessions() -> Iterator[Session]:
        return (_Watched(session, seen) for session in load.sessions())

    return Workload(sessions=sessions, total=load.total)


#: Told what is being measured now.
Progress = Callable[[str], None]


def quiet(what: str) -> None:
    """No progress is wanted."""
