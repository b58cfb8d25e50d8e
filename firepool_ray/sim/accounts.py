"""What a run is measured by: GPU-seconds by state, their curve over time, starts and latencies.

Written by the engine's parts as things happen, read once at the end. Memory does not grow with the
number of jobs: sums, histograms, and curves of a bounded number of points.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from firepool_ray.core.model import SOURCES
from firepool_ray.observe import histogram

#: What a lane is at every instant. ``busy``: a job runs on its active worker. ``idle``: an active,
#: bound worker without a job. ``starting``: it grows, or the worker that is to be active starts, is
#: promoted or leaves. ``free``: ready, no active worker and nothing starts: kept for a standby.
STATES = ("busy", "idle", "starting", "free")
BUSY, IDLE, STARTING, FREE = range(4)
NOWHERE = -1  #: not there yet, or gone
_SOURCE: dict[str, int] = {source: number for number, source in enumerate(SOURCES)}
#: Points of a curve, at most; at least half as many once there was that much time.
POINTS = 1024


@dataclass(frozen=True, slots=True)
class Curve:
    """Means over bins of equal width, from ``begin_s`` on."""

    begin_s: float
    bin_s: float
    gpus: dict[str, list[float]]  #: by state: mean GPUs in each bin
    served: dict[str, list[int]]  #: by source: jobs that arrived in each bin


class GpuAccounts:
    """Integrals of GPUs by state. ``change`` whenever a lane changes its state."""

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.gpu_s = [0.0] * len(STATES)
        self.peak_gpus = 0.0
        self._now = [0.0] * len(STATES)
        self._held = 0.0
        self._at = begin_s
        self._bin_s = 1.0
        self._bin_end = begin_s + 1.0
        self._bins: list[list[float]] = [[0.0] * len(STATES)]
        self._served: list[list[float]] = [[0.0] * len(SOURCES)]

    def change(self, at: float, old: int, new: int, gpus: float) -> None:
        if at > self._at:
            self.advance(at)
        now = self._now
        if old >= 0:
            now[old] -= gpus
        else:
            self._held += gpus
            if self._held > self.peak_gpus:
                self.peak_gpus = self._held
        if new >= 0:
            now[new] += gpus
        else:
            self._held -= gpus

    def served(self, arrived_at: float, source: str) -> None:
        """A job that arrived then was served so; later than the last ``advance`` is impossible."""
        number = int((arrived_at - self.begin_s) / self._bin_s)
        self._served[min(max(0, number), len(self._bins) - 1)][_SOURCE[source]] += 1

    def advance(self, at: float) -> None:
        """Time passes."""
        while self._bin_end < at:
            self._collect(self._bin_end)
            if len(self._bins) >= POINTS:
                self._halve()
            self._bins.append([0.0] * len(STATES))
            self._served.append([0.0] * len(SOURCES))
            self._bin_end = self.begin_s + len(self._bins) * self._bin_s
        self._collect(at)

    def _collect(self, at: float) -> None:
        dt = at - self._at
        if dt <= 0:
            return
        self._at = at
        sums, current = self.gpu_s, self._bins[-1]
        for state, gpus in enumerate(self._now):
            if gpus > 0:
                sums[state] += gpus * dt
                current[state] += gpus * dt

    def _halve(self) -> None:
        """Bins of twice the width."""
        self._bins = [_added(pair) for pair in _pairs(self._bins)]
        self._served = [_added(pair) for pair in _pairs(self._served)]
        self._bin_s *= 2

    def curve(self) -> Curve:
        last_s = self._at - (self.begin_s + (len(self._bins) - 1) * self._bin_s)
        widths = [self._bin_s] * (len(self._bins) - 1) + [max(last_s, 1e-9)]
        return Curve(
            self.begin_s,
            self._bin_s,
            {
                name: [sums[state] / w for sums, w in zip(self._bins, widths, strict=True)]
                for state, name in enumerate(STATES)
            },
            {
                source: [int(counts[number]) for counts in self._served]
                for number, source in enumerate(SOURCES)
            },
        )


def _pairs(items: list[list[float]]) -> list[list[list[float]]]:
    return [items[i : i + 2] for i in range(0, len(items), 2)]


def _added(rows: list[list[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


@dataclass(slots=True)
class Starts:
    """Workers that were started or promoted, and what that costs in GPUs."""

    counts: dict[str, int] = field(
        default_factory=lambda: {"cold": 0, "standby": 0, "handover": 0, "refill": 0}
    )
    cold_gpus: float = 0.0  #: GPUs of all cold starts together, by the part to be paid
    promoted_gpus: float = 0.0  #: GPUs of all promotions of standbys together

    def started(self, gpus: float, alone: float) -> None:
        """A worker started. ``alone``: the part of its start in which no other used the lane.

        That part of a cold start is paid; what happens beside an active worker costs no GPU.
        """
        self.counts["cold" if alone > 0.5 else "refill"] += 1
        self.cold_gpus += gpus * alone

    def given_up(self, gpus: float, alone: float) -> None:
        """A start was broken off: what there was of it is paid all the same."""
        self.cold_gpus += gpus * alone

    def granted(self, source: str, gpus: float) -> None:
        if source in ("standby", "handover"):
            self.counts[source] += 1
            self.promoted_gpus += gpus


class Latencies:
    """Start latencies: from a job's arrival to its worker's acceptance, by source and queue."""

    def __init__(self) -> None:
        self.counts: dict[str, histogram.Counts] = {source: {} for source in SOURCES}
        self.longest_s: dict[str, float] = {}  #: by queue

    def note(self, source: str, queue: str, seconds: float) -> None:
        bucket = histogram.bucket_of(seconds)
        counts = self.counts[source]
        counts[bucket] = counts.get(bucket, 0) + 1
        if seconds > self.longest_s.get(queue, -1.0):
            self.longest_s[queue] = max(0.0, seconds)
