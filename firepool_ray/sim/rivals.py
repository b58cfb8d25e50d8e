"""Keep-alive policies of others, to compare with. Made by the commands and ``sim.figures*``.

Each obeys ``core.keepalive.KeepAlive`` and may be given to ``Machine(policies=...)``; one object
serves one profile. They are not for production: no pool file can name them, and the core never
imports them. What a paper's policy does that a pool of bound workers cannot do is said in its
docstring.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from firepool_ray.core.keepalive import Fixed, KeepAlive
from firepool_ray.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from firepool_ray.core.keepalive import Idle, Prices
    from firepool_ray.core.model import Caller

FORMS = "lru:SECONDS, greedy-dual, hybrid"
#: Callers that a policy remembers; the one unheard of for longest goes first.
CALLERS = 10_000


class LruTtl(Fixed):
    """A fixed time to live, the least recently used goes first. The usual default of FaaS."""

    def __init__(self, ttl_s: float) -> None:
        if not ttl_s >= 0:
            raise UsageError(f"lru: a time to live must be >= 0 s, not {ttl_s}")
        super().__init__(ttl_s)


class GreedyDual(KeepAlive):
    """FaasCache: Fuerst and Sharma, "FaasCache: Keeping Serverless Computing Alive with
    Greedy-Dual Caching", ASPLOS 2021.

    Priority = clock + frequency * cost / size, set when a call ends; the lowest goes first and the
    clock rises to the priority of what went. Cost is a cold start, size the GPUs. Frequency counts
    a caller's calls on all its workers, from zero again once none of them is left. Without a need
    for capacity nothing is ever released. The paper's reservation of servers ("vertical scaling")
    is not modelled.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        self._calls: dict[Caller, int] = {}
        self._workers: dict[Caller, int] = {}

    def hold_s(self, idle: Idle, prices: Prices) -> float:
        calls = self._calls[idle.caller] = self._calls.get(idle.caller, 0) + 1
        idle.mark = self.clock + calls * prices.cold_s / (prices.gpus or 1.0)
        return math.inf

    def worth(self, idle: Idle, at: float, prices: Prices) -> float:
        return idle.mark

    def released(self, idle: Idle, at: float) -> None:
        self.clock = max(self.clock, idle.mark)
        left = self._workers.get(idle.caller, 1) - 1
        if left > 0:
            self._workers[idle.caller] = left
        else:
            self._workers.pop(idle.caller, None)
            self._calls.pop(idle.caller, None)

    def started(self, caller: Caller, at: float) -> None:
        self._workers[caller] = self._workers.get(caller, 0) + 1


class HybridHistogram(KeepAlive):
    """Shahrad et al., "Serverless in the Wild: Characterizing and Optimizing the Serverless
    Workload at a Large Cloud Provider", USENIX ATC 2020.

    Per caller a histogram of idle times in 240 bins; what is longer is out of bounds. The paper's
    bin is a minute where starts take seconds; here it is one cold start. With a representative
    histogram a worker is held up to the 99th percentile of its bins and 10 % more; otherwise (few
    idle times, a coefficient of variation of the bin counts below 2, or most of them out of
    bounds) for the standard keep-alive, which is the histogram's whole range.

    Not modelled: unloading at once and pre-warming at the 5th percentile less 10 %, as workers are
    bound to callers from their first job on, and the core warms for one by its own rule. So where
    that head lies beyond the first bin, the real policy would hold less. Callers out of bounds
    have a time series model (ARIMA) there, the standard keep-alive here.
    """

    BINS = 240
    TAIL, MARGIN = 0.99, 0.10
    MIN_CV = 2.0
    FEW = 5  #: idle times below which a histogram says nothing

    def __init__(self) -> None:
        self._seen: OrderedDict[Caller, _Histogram] = OrderedDict()
        self._bin_s = 0.0  #: width of a bin: the cold cost when the first worker became idle

    def hold_s(self, idle: Idle, prices: Prices) -> float:
        self._bin_s = self._bin_s or max(prices.cold_s, 1e-3)
        seen = self._of(idle.caller)
        bins = seen.tail(self.TAIL) if seen.representative(self.FEW, self.MIN_CV) else self.BINS
        margin = 1.0 + self.MARGIN if bins < self.BINS else 1.0
        return bins * margin * self._bin_s

    def worth(self, idle: Idle, at: float, prices: Prices) -> float:
        return idle.since  # the paper has no rule of its own; the least recently used goes

    def reused(self, idle: Idle, at: float) -> None:
        self._count(self._of(idle.caller), at - idle.since)

    def released(self, idle: Idle, at: float) -> None:
        left = self._of(idle.caller).left
        left.append(idle.since)
        del left[: -self.BINS]

    def started(self, caller: Caller, at: float) -> None:
        """An idle time went on after the release: it ends now. The last in is the first out."""
        seen = self._of(caller)
        if seen.left:
            self._count(seen, at - seen.left.pop())

    def _count(self, seen: _Histogram, gap_s: float) -> None:
        seen.add(int(gap_s / self._bin_s) if self._bin_s else 0)

    def _of(self, caller: Caller) -> _Histogram:
        seen = self._seen.get(caller)
        if seen is None:
            seen = self._seen[caller] = _Histogram(self.BINS)
            if len(self._seen) > CALLERS:
                self._seen.popitem(last=False)
        else:
            self._seen.move_to_end(caller)
        return seen


class _Histogram:
    """One caller's idle times."""

    __slots__ = ("beyond", "counts", "left", "total")

    def __init__(self, bins: int) -> None:
        self.counts: npt.NDArray[np.int32] = np.zeros(bins, dtype=np.int32)
        self.total = 0  #: within the range
        self.beyond = 0  #: out of bounds
        self.left: list[float] = []  #: when workers that were released became idle

    def add(self, index: int) -> None:
        if index >= self.counts.size:
            self.beyond += 1
            return
        self.counts[max(0, index)] += 1
        self.total += 1

    def representative(self, few: int, min_cv: float) -> bool:
        if self.total < few or self.beyond > self.total:
            return False
        return float(self.counts.std() / self.counts.mean()) >= min_cv

    def tail(self, share: float) -> int:
        """So many bins hold this share of all idle times within the range."""
        reached = np.cumsum(self.counts) >= math.ceil(share * self.total)
        return int(np.argmax(reached)) + 1


def parse(text: str) -> KeepAlive | None:
    """A comparison policy from its text form; None if it is none of them.

    Raises ``UsageError`` for one of them whose number is wrong.
    """
    name, _, rest = text.strip().partition(":")
    if name == "lru":
        try:
            return LruTtl(float(rest))
        except ValueError as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"{text!r}: give a time to live in seconds, as lru:60") from None
    if name in ("greedy-dual", "hybrid"):
        if rest:
            raise UsageError(f"{text!r}: {name} takes no number")
        return GreedyDual() if name == "greedy-dual" else HybridHistogram()
    return None
