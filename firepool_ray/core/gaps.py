"""Idle gaps as a decaying histogram, and the hold time that it makes best.

Used by ``adaptive``. A gap is the time from the end of a caller's job to its next one, whether the
worker was still held by then or not. Bins are logarithmic, so the state does not grow.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

#: Gaps up to this are all the same: a client is between two jobs.
FLOOR_S = 0.05
_PER_OCTAVE = 2
#: From the floor to about a day; longer gaps count as no return.
BINS = 44
#: Upper edge of each bin, in seconds.
EDGES_S = tuple(FLOOR_S * 2 ** (i / _PER_OCTAVE) for i in range(BINS))
#: Where a bin's gaps lie on average.
_MIDDLES_S = (FLOOR_S / 2, *(FLOOR_S * 2 ** ((i - 0.5) / _PER_OCTAVE) for i in range(1, BINS)))
#: Index of the share that never comes back.
NEVER = BINS

#: Releases whose outcome is open. The oldest beyond that many count as no return.
_PENDING = 4096
#: The profile's picture is drawn anew after so many per cent more gaps.
_STALE = 0.02


def bin_of(gap_s: float) -> int:
    if gap_s <= FLOOR_S:
        return 0
    return min(BINS - 1, 1 + int(_PER_OCTAVE * math.log2(gap_s / FLOOR_S)))


class Hold(NamedTuple):
    """The best hold time, and what it brings."""

    hold_s: float
    idle_s: float  #: expected idle time held per gap
    warm: float  #: share of gaps that end while the worker is held


def best_hold(shares: Sequence[float], price_s: float, longest_s: float) -> Hold:
    """The hold time T with the least expected cost E[min(gap, T)] + P(gap > T) * price.

    That is where the hazard of a return falls below 1 / price for good: with a heavy tail holding
    on stops paying, however long the mean. ``shares``: weight per bin, then of no return.
    """
    total = sum(shares)
    best = Hold(0.0, 0.0, 0.0)
    best_cost = total * price_s
    gone, held = 0.0, 0.0  # of the gaps that ended by then: their weight, and their lengths
    for i in range(BINS):
        edge = EDGES_S[i]
        if edge > longest_s:
            break
        if shares[i] <= 0.0:
            continue
        gone += shares[i]
        held += shares[i] * _MIDDLES_S[i]
        left = total - gone
        cost = held + left * (edge + price_s)
        if cost < best_cost:
            best, best_cost = Hold(edge, (held + left * edge) / total, gone / total), cost
    return best


def hazards_per_s(shares: Sequence[float]) -> list[float]:
    """Per bin: chance per second that a worker idle for so long is wanted again, over an octave."""
    hazards = [0.0] * BINS
    after = shares[NEVER]
    for i in range(BINS - 1, -1, -1):
        after += shares[i]
        if after > 0.0:
            last = min(BINS - 1, i + _PER_OCTAVE - 1)
            begin_s = EDGES_S[i - 1] if i else 0.0
            hazards[i] = sum(shares[i : last + 1]) / after / (EDGES_S[last] - begin_s)
    return hazards


class Gaps:
    """All gaps of a profile, those still open included: what is not seen yet biases nothing.

    Shares are the product-limit estimate (Kaplan and Meier, 1958): per bin, returns among those
    that were still out by then.
    """

    __slots__ = ("_at", "_decay", "_drawn", "_ended", "_pending", "_shares", "counts", "seen")

    def __init__(self, half_life: float) -> None:
        self.counts = [0.0] * (BINS + 1)
        self._ended = [0.0] * (BINS + 1)  #: watched for so long, then by other means than a return
        self.seen = 0  #: gaps ever
        self._decay = 2.0 ** (-1.0 / half_life)  #: per gap
        self._pending: list[float] = []  #: when those that are out were released, in order
        self._shares: list[float] | None = None
        self._drawn = 0  #: ``seen`` when the shares were computed
        self._at = 0.0  #: and when that was

    def add(self, gap_s: float) -> None:
        self._count(bin_of(gap_s))

    def censor(self, gap_s: float) -> None:
        """Watched for so long without a return, and then no longer: neither a return nor none."""
        self._ended[bin_of(gap_s)] += 1.0
        self._step()

    def _count(self, bin: int) -> None:
        self.counts[bin] += 1.0
        self._step()

    def _step(self) -> None:
        if self.seen % 64 == 63:  # decay in steps: one gap costs one addition
            factor = self._decay**64
            self.counts = [count * factor for count in self.counts]
            self._ended = [count * factor for count in self._ended]
        self.seen += 1

    def let_go(self, since: float) -> None:
        """A worker idle since then was released."""
        insort(self._pending, since)
        if len(self._pending) > _PENDING:
            del self._pending[0]
            self._count(NEVER)

    def returned(self, since: float, at: float) -> None:
        """The one released after being idle since then would have been of use now."""
        if not self._drop(since):  # too many were out: it was taken as no return
            self.counts[NEVER] = max(0.0, self.counts[NEVER] - 1.0)
        self.add(at - since)

    def lost(self, since: float) -> None:
        """Its caller is forgotten: taken as no return."""
        if self._drop(since):
            self._count(NEVER)

    def forget(self, since: float) -> None:
        """Its caller said that it is done: that tells nothing about the others."""
        self._drop(since)

    def _drop(self, since: float) -> bool:
        index = bisect_left(self._pending, since)
        if index < len(self._pending) and self._pending[index] == since:
            del self._pending[index]
            return True
        return False

    def shares(self, at: float) -> list[float]:
        """Weight per bin and of no return, summing to 1; all on no return where nothing is known.

        Computed anew when enough has changed, so most calls cost nothing.
        """
        fresh = self.seen - self._drawn <= _STALE * self._drawn and at < self._at
        if self._shares is None or not fresh:
            self._shares = self._estimate(at)
            self._drawn = self.seen
            # Open gaps age by themselves: a busy profile looks often, a quiet one has time.
            self._at = at + 10.0
        return self._shares

    def _estimate(self, at: float) -> list[float]:
        shares = [0.0] * (BINS + 1)
        beyond = sum(self.counts) + sum(self._ended)
        survive = 1.0
        pending, total = self._pending, len(self._pending)
        for i in range(BINS):
            # Out for longer than this bin, without having come back.
            open_beyond = bisect_left(pending, at - EDGES_S[i]) if total else 0
            at_risk = beyond + open_beyond
            if at_risk > 0.0:
                shares[i] = survive * self.counts[i] / at_risk
                survive -= shares[i]
            beyond -= self.counts[i] + self._ended[i]
        shares[NEVER] = max(0.0, survive)
        return shares
