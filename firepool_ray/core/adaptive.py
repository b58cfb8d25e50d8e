"""The adaptive keep-alive: hold an idle worker for as long as its caller's own gaps make it pay.

One object per profile, used through ``keepalive.KeepAlive``. Each caller has a histogram of its
gaps, blended with the profile's while it has few; the hold time is the one with the least expected
cost. Releasing does not end the watching: a caller that comes back later than its worker was held
teaches its true gap. State per caller does not grow, and callers are bounded.
"""

from __future__ import annotations

from collections import OrderedDict

from firepool_ray.core.gaps import BINS, NEVER, Gaps, Hold, best_hold, bin_of, hazards_per_s
from firepool_ray.core.keepalive import Idle, KeepAlive, Prices
from firepool_ray.core.model import Caller

#: The profile's gaps count as this many of a caller's own. Between 3 and 20 the cost on agent
#: sessions, image jobs and generated loops alike moves by about one per cent.
PRIOR_GAPS = 8.0
#: Below this many gaps in the profile nothing is known: hold for the price of a start, which costs
#: at most twice the optimum whatever comes (Karlin et al., 1988).
FEW_GAPS = 8
#: Nothing is held for longer than this many times the price of a start: beyond twice, even a
#: certain return has cost more than it saves, and an estimate may always be wrong.
LONGEST = 2.0
#: Half-lives in gaps: of a caller's own picture, and of the profile's.
CALLER_HALF_LIFE = 140.0
PROFILE_HALF_LIFE = 5000.0
#: Callers whose gaps are remembered; the one that was idle longest ago is forgotten first.
CALLERS = 16_384
#: Released workers of one caller whose return is awaited.
AWAITED = 16
#: A caller's hold time is computed anew after so much more of its own gaps, or price moves.
_STALE = 0.1


class Habit:
    """What is known of one caller. About a kilobyte, whatever it does."""

    __slots__ = (
        "all_until",
        "awaited",
        "counts",
        "hazards",
        "hold",
        "own_until",
        "price_s",
        "seen",
    )

    def __init__(self) -> None:
        self.counts = [0.0] * (BINS + 1)
        self.seen = 0
        #: When its released workers had become idle, oldest first: the last released is the first
        #: that would have been used again.
        self.awaited: list[float] = []
        self.hold = Hold(0.0, 0.0, 0.0)
        self.price_s = -1.0  #: for which ``hold`` was computed
        #: It stands until the caller, or the whole profile, has seen so many gaps.
        self.own_until = 0
        self.all_until = 0
        self.hazards: list[float] | None = None  #: of the same picture, once asked for

    def add(self, gap_s: float) -> None:
        if self.seen % 16 == 15:
            factor = 2.0 ** (-16 / CALLER_HALF_LIFE)
            self.counts = [count * factor for count in self.counts]
        self.counts[bin_of(gap_s)] += 1.0
        self.seen += 1


class Adaptive(KeepAlive):
    """``price``: what a second of a start is worth, in seconds of an idle worker. 1 minimises
    GPU-seconds; more buys latency with them.
    """

    learns = True

    def __init__(self, price: float = 1.0) -> None:
        self.price = price
        self.gaps = Gaps(PROFILE_HALF_LIFE)
        self.habits: OrderedDict[Caller, Habit] = OrderedDict()

    def hold_s(self, idle: Idle, prices: Prices) -> float:
        return self._hold(self._habit(idle.caller), idle.since, prices).hold_s

    def worth(self, idle: Idle, at: float, prices: Prices) -> float:
        habit = self._habit(idle.caller)
        if habit.hazards is None or habit.seen >= habit.own_until:
            self._hold(habit, at, prices)
            habit.hazards = hazards_per_s(self._blend(habit, at))
        return habit.hazards[bin_of(at - idle.since)] * prices.cold_s / prices.gpus

    def reused(self, idle: Idle, at: float) -> None:
        gap_s = max(0.0, at - idle.since)
        self._habit(idle.caller).add(gap_s)
        self.gaps.add(gap_s)

    def released(self, idle: Idle, at: float) -> None:
        habit = self._habit(idle.caller)
        habit.awaited.append(idle.since)
        self.gaps.let_go(idle.since)
        if len(habit.awaited) > AWAITED:
            self.gaps.lost(habit.awaited.pop(0))
            habit.counts[NEVER] += 1.0

    def started(self, caller: Caller, at: float) -> None:
        habit = self.habits.get(caller)
        if habit is not None and habit.awaited:
            since = habit.awaited.pop()
            habit.add(max(0.0, at - since))
            self.gaps.returned(since, at)

    def closed(self, caller: Caller) -> None:
        """Its habits stay: one of that name may come again."""
        habit = self.habits.get(caller)
        if habit is not None:
            for since in habit.awaited:
                self.gaps.forget(since)
            habit.awaited.clear()

    def outlook(self, caller: Caller) -> Hold | None:
        habit = self.habits.get(caller)
        return habit.hold if habit is not None and habit.price_s >= 0 else None

    def _habit(self, caller: Caller) -> Habit:
        habit = self.habits.get(caller)
        if habit is None:
            habit = self.habits[caller] = Habit()
            if len(self.habits) > CALLERS:
                _, forgotten = self.habits.popitem(last=False)
                for since in forgotten.awaited:
                    self.gaps.lost(since)
        else:
            self.habits.move_to_end(caller)
        return habit

    def _hold(self, habit: Habit, at: float, prices: Prices) -> Hold:
        price_s = self.price * prices.cold_s
        moved = abs(price_s - habit.price_s) > _STALE * habit.price_s
        if moved or habit.seen >= habit.own_until or self.gaps.seen >= habit.all_until:
            habit.price_s = price_s
            habit.hazards = None
            habit.own_until = habit.seen + max(1, int(_STALE * habit.seen))
            habit.all_until = self.gaps.seen + max(1, int(_STALE * self.gaps.seen))
            if self.gaps.seen < FEW_GAPS:
                habit.hold = Hold(price_s, price_s, 0.0)
            else:
                habit.hold = best_hold(self._blend(habit, at), price_s, LONGEST * price_s)
        return habit.hold

    def _blend(self, habit: Habit | None, at: float) -> list[float]:
        shares = self.gaps.shares(at)
        if habit is None or not habit.seen:
            return shares
        return [own + PRIOR_GAPS * of_all for own, of_all in zip(habit.counts, shares, strict=True)]
