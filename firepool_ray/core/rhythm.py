"""A caller's bursts and pauses, and when its next burst is due. Used by ``warming``.

A burst is a time in which at least one worker of the caller works, short breaks included; a pause
is a time without work for longer than idle workers are held, so that the next burst would have to
start anew. Where pauses are regular (a trainer's update between rollouts) it can be told.
"""

from __future__ import annotations

import math

from firepool_ray.core.costs import Mean
from firepool_ray.core.model import ReuseKey

#: Pauses seen before the next one is told: with two their spread is known, if badly.
FEW_PAUSES = 2
#: Weight of the newest pause in the moving mean and variance.
_GAIN = 0.2
#: Nineteen of twenty bursts begin later than the mean less this many deviations, if those are
#: normal: of ten jobs nine should find their worker warm, and some margin.
EARLY = 1.64
#: And all but one in forty before the mean and this many.
LATE = 1.96
#: The moving mean and variance know about as much as this many pauses.
_EFFECTIVE = 9
#: The profile's predictions count as this many of the caller's own.
_PRIOR = 2.0
#: What all callers of the profile wait for a worker counts as this many starts of the caller's.
_PRIOR_STARTS = 4
#: Bursts whose sizes are remembered.
_SIZES = 3


class Rhythm:
    """One caller in one profile. Constant size."""

    __slots__ = (
        "busy",
        "client",
        "coming",
        "due",
        "earliest",
        "gain_s",
        "held_s",
        "id",
        "judged",
        "key",
        "mean",
        "pauses",
        "pausing",
        "peak",
        "quiet_since",
        "restart",
        "sizes",
        "told",
        "until",
        "variance",
    )

    def __init__(self, id: str, key: ReuseKey, restart_s: float) -> None:
        self.id = id
        #: What it waits where none of its workers is warm: cold starts or promotions, as usual.
        self.restart = Mean(restart_s, weight=_PRIOR_STARTS)
        self.key = key  #: the last one used
        self.client = ""  #: and the client that used it
        self.busy = 0  #: workers at work, or on their way to work
        self.peak = 0  #: most of them since the burst began
        self.quiet_since: float | None = None  #: None while it works, or before it ever did
        self.held_s = 0.0  #: how long its keep-alive holds an idle worker
        self.pausing = 0.5  #: part of the times without work that were pauses
        self.pauses = 0  #: seen so far
        self.mean = 0.0  #: of the logarithm of the pauses
        self.variance = 0.0
        self.sizes: list[int] = []  #: workers that the last bursts used
        self.told = False  #: its next burst is expected between the two times below
        self.earliest = 0.0
        self.until = 0.0
        self.due = False  #: workers are being warmed for it
        self.gain_s = 0.0  #: moving mean of what following the last predictions would have brought
        self.judged = 0  #: predictions that came true or not
        self.coming = 0  #: of them, those being bound

    def awake(self, at: float, long_s: float) -> float | None:
        """The first worker begins to work. A pause of at least ``long_s`` separates two bursts.

        Returns how long the pause was; None where it was none.
        """
        since, self.quiet_since = self.quiet_since, None
        if since is None:
            return None
        pause_s = at - since
        is_pause = pause_s >= max(long_s, 1e-3)
        self.pausing += _GAIN * (is_pause - self.pausing)
        if not is_pause:
            return None
        self.sizes = [*self.sizes, self.peak][-_SIZES:]
        self.peak = 0
        value = math.log(pause_s)
        self.pauses += 1
        gain = max(_GAIN, 1.0 / self.pauses)
        delta = value - self.mean
        self.mean += gain * delta
        self.variance = (1.0 - gain) * (self.variance + gain * delta * delta)
        return pause_s

    def works(self, workers: int) -> None:
        self.peak = max(self.peak, workers)

    def judge(self, at: float | None, start_s: float) -> float:
        """What following the prediction has brought per worker, in seconds; None: no burst came.

        A start hidden, less the time that a worker ready for the earliest was idle; or, where the
        burst did not come, a start and that time for nothing.
        """
        if at is None or at > self.until:
            gain_s = -(start_s + self.until - self.earliest)
        else:
            gain_s = min(start_s, max(0.0, at - self.earliest + start_s))
            gain_s -= max(0.0, at - self.earliest)
        self.judged += 1
        self.gain_s += max(_GAIN, 1.0 / self.judged) * (gain_s - self.gain_s)
        return gain_s

    def pays(self, of_all_s: float) -> bool:
        """Whether to follow the next one; ``of_all_s`` is the mean gain of the whole profile."""
        seen = min(self.judged, _EFFECTIVE)
        return seen * self.gain_s + _PRIOR * of_all_s > 0

    @property
    def workers(self) -> int:
        """How many to warm: the median of the last bursts, so that one outlier changes little.

        The one that has just ended is among them: ``sizes`` has it only when the next one begins.
        """
        sizes = sorted([*self.sizes, self.peak][-_SIZES:] if self.peak else self.sizes)
        return sizes[len(sizes) // 2] if sizes else 0

    def pause_s(self) -> tuple[float, float, float] | None:
        """(earliest, mean, latest) length of the next pause; None where nobody can tell."""
        if self.pauses < FEW_PAUSES:
            return None
        seen = min(self.pauses, _EFFECTIVE)
        # Few pauses tell the next one badly: about the widening of Student's prediction interval.
        deviation = math.sqrt(self.variance) * (1.0 + 1.0 / seen) ** 1.5
        return (
            math.exp(self.mean - EARLY * deviation),
            math.exp(self.mean),
            math.exp(self.mean + LATE * deviation),
        )

    def predict(self, start_s: float) -> bool:
        """Tell when the next burst is expected; False if nobody can.

        Told only where being ready for the earliest costs less idle time than the start it hides.
        """
        pause = self.pause_s()
        if self.quiet_since is None or pause is None:
            return False
        earliest_s, mean_s, latest_s = pause
        if mean_s - earliest_s > start_s:
            return False
        self.told = True
        self.earliest = self.quiet_since + earliest_s
        # Beyond the latest it is worth waiting for as long as a start costs, and no longer.
        self.until = self.quiet_since + latest_s + start_s
        return True

    def bridge_s(self, cold_s: float, restart_s: float) -> float:
        """How long to hold on where a pause is hardly longer than a start; else 0.

        Whoever let go would have to start again at once. The slack is for those that ended early.
        ``restart_s``: what the caller really waits without its own workers; holding on for a burst
        that nobody can tell to within that would cost more.
        """
        pause = self.pause_s()
        if pause is None or pause[0] > cold_s or pause[1] - pause[0] > restart_s:
            return 0.0
        if self.pausing < 0.5:  # most breaks are shorter, and have a hold time of their own
            return 0.0
        return pause[2] + restart_s
