"""The adaptive keep-alive by itself, its rivals and how policies are written."""

from __future__ import annotations

import random
from math import isclose

import pytest

from firepool_ray.core import adaptive, keepalive
from firepool_ray.core import events as ev
from firepool_ray.core.actions import RevokeLease
from firepool_ray.core.adaptive import AWAITED, FEW_GAPS, Adaptive
from firepool_ray.core.gaps import BINS, EDGES_S, NEVER, bin_of
from firepool_ray.core.keepalive import INF, Fixed, Form, Idle, Prices
from firepool_ray.core.model import Caller
from tests.core.desk import ALICE, BOB, CAROL, ready, want

PRICES = Prices(cold_s=20.0, promote_s=0.02, gpus=1.0)


def edge(gap_s: float) -> float:
    """A hold that lasts for gaps like this."""
    return EDGES_S[bin_of(gap_s)]


class Life:
    """One worker at a time for each caller: gaps follow each other, held or not."""

    def __init__(self, policy: Adaptive | None = None, prices: Prices = PRICES) -> None:
        self.policy = policy or Adaptive()
        self.prices = prices
        self.at = 0.0
        self.idle_s = 0.0
        self.starts = 0

    def gap(self, gap_s: float, caller: Caller = ALICE) -> float:
        """A worker becomes idle, its caller is back after ``gap_s``; returns the hold time."""
        idle = Idle(caller, self.at)
        hold_s = self.policy.hold_s(idle, self.prices)
        self.at += gap_s
        if gap_s <= hold_s:
            self.policy.reused(idle, self.at)
        else:
            self.policy.released(idle, idle.since + hold_s)
            self.policy.started(caller, self.at)
            self.starts += 1
        self.idle_s += min(gap_s, hold_s)
        return hold_s

    def gaps(self, lengths: list[float], caller: Caller = ALICE) -> float:
        """All of them; returns the last hold time."""
        return [self.gap(gap_s, caller) for gap_s in lengths][-1]

    def never(self, caller: Caller) -> float:
        """It becomes idle and its caller never comes back; returns the hold time."""
        idle = Idle(caller, self.at)
        hold_s = self.policy.hold_s(idle, self.prices)
        self.at += 1.0
        self.policy.released(idle, idle.since + hold_s)
        self.idle_s += hold_s
        return hold_s

    @property
    def cost(self) -> float:
        return self.idle_s + self.starts * self.prices.cold_s


# ---------------------------------------------------------------- hold times


def test_while_nothing_is_known_a_worker_is_held_for_the_price_of_a_start() -> None:
    life = Life()
    assert life.policy.outlook(ALICE) is None
    assert [life.gap(1.0) for _ in range(FEW_GAPS)] == [20.0] * FEW_GAPS
    assert life.policy.outlook(ALICE) == (20.0, 20.0, 0.0)
    assert life.gap(1.0) == edge(1.0)


def test_the_price_of_a_start_is_what_is_told_times_the_price_of_a_second() -> None:
    prices = Prices(cold_s=5.0, promote_s=0.02, gpus=4.0)
    assert Life(Adaptive(), prices).gap(1.0) == 5.0
    assert Life(Adaptive(price=3.0), prices).gap(1.0) == 15.0


def test_short_gaps_are_held_and_long_ones_are_not() -> None:
    # Of ten gaps nine are a second long and one is ten minutes.
    hold_s = Life().gaps(([1.0] * 9 + [600.0]) * 12)
    assert hold_s == edge(1.0)


def test_gaps_that_cost_more_than_a_start_are_not_held_at_all() -> None:
    life = Life()
    assert life.gaps([60.0] * 40) == 0.0
    assert life.policy.outlook(ALICE) == (0.0, 0.0, 0.0)


def test_a_dearer_start_is_held_for_longer() -> None:
    lengths = ([1.0] * 2 + [30.0] * 8) * 10
    assert Life(Adaptive(), PRICES).gaps(lengths) == edge(1.0)
    dear = Prices(cold_s=200.0, promote_s=0.02, gpus=1.0)
    assert Life(Adaptive(), dear).gaps(lengths) == edge(30.0)


def test_the_hold_follows_a_price_that_moves() -> None:
    life = Life()
    life.gaps([30.0] * 200)
    assert life.gap(30.0) == 0.0
    life.prices = PRICES._replace(cold_s=21.0)  # hardly
    assert life.gap(30.0) == 0.0
    life.prices = PRICES._replace(cold_s=60.0)
    assert life.gap(30.0) == edge(30.0)


@pytest.mark.parametrize("tail", [0.5, 0.8, 1.2])
def test_no_hold_is_longer_than_twice_the_price(tail: float) -> None:
    chance = random.Random(3)
    life = Life()
    holds = [life.gap(0.5 * chance.paretovariate(tail)) for _ in range(1500)]
    assert max(holds) <= 2 * PRICES.cold_s


@pytest.mark.parametrize("tail", [0.5, 0.8, 1.2])
def test_learning_costs_little_over_the_best_fixed_hold(tail: float) -> None:
    """Learned from nothing and online, against the best in hindsight."""
    chance = random.Random(11)
    lengths = [0.5 * chance.paretovariate(tail) for _ in range(3000)]
    life = Life()
    life.gaps(lengths)
    best = min(
        sum(g if g <= ttl_s else ttl_s + PRICES.cold_s for g in lengths)
        for ttl_s in (i * 0.2 for i in range(201))
    )
    assert life.cost <= 1.05 * best


def test_a_hold_bridges_short_gaps_within_a_burst_and_not_the_pause() -> None:
    chance = random.Random(5)
    life = Life()
    holds = []
    for _ in range(30):
        holds += [life.gap(chance.uniform(0.2, 0.8)) for _ in range(20)]
        holds.append(life.gap(chance.uniform(100.0, 140.0)))
    assert edge(0.7) <= holds[-1] <= edge(0.8)
    assert life.starts <= 31 + FEW_GAPS  # one for each pause, hardly any within bursts


# ---------------------------------------------------------------- a caller and its profile


def test_a_new_caller_is_taken_for_one_of_its_profile() -> None:
    life = Life()
    for i in range(20):
        life.gaps([1.0] * 4, Caller("default", f"c{i}"))
    assert life.gap(1.0, BOB) == edge(1.0)


def test_a_caller_unlike_its_profile_departs_from_it_after_some_gaps() -> None:
    """All others come back after 15 s, which pays; this one after five minutes, which does not."""
    life = Life()
    for i in range(50):
        life.gaps([15.0] * 4, Caller("default", f"c{i}"))
    holds = [life.gap(300.0, BOB) for _ in range(30)]
    first = holds.index(0.0)
    assert holds == [edge(15.0)] * first + [0.0] * (30 - first)
    # With n gaps of its own holding for 18.1 s pays while 8 * 15.2 + n * 38.1 < (8 + n) * 20.
    assert first == 3 <= adaptive.PRIOR_GAPS
    assert life.gap(15.0, ALICE) == edge(15.0)  # the others are not disturbed


def test_a_caller_that_changes_its_ways_is_followed() -> None:
    life = Life()
    assert life.gaps([1.0] * 300) == edge(1.0)
    assert life.gaps([15.0] * 300) == edge(15.0)


# ---------------------------------------------------------------- what became of the released


def test_released_workers_whose_caller_returns_teach_the_true_gap() -> None:
    life = Life()
    life.gaps([60.0] * 40)
    habit = life.policy.habits[ALICE]
    assert habit.awaited == [] and habit.seen == 40
    assert habit.counts[bin_of(60.0)] == max(habit.counts)
    assert sum(habit.counts) == habit.counts[bin_of(60.0)]
    assert isclose(life.policy.gaps.shares(life.at)[bin_of(60.0)], 1.0)


def test_a_return_later_than_the_hold_lengthens_it_where_that_pays() -> None:
    """Nothing is ever held for as long as the gaps are, and still they become known."""
    life = Life()
    for i in range(30):
        life.gaps([1.0] * 6, Caller("default", f"c{i}"))
    assert life.gap(12.0, BOB) == edge(1.0)
    assert life.gaps([12.0] * 25, BOB) == edge(12.0)
    assert life.starts < 20


def test_the_last_released_is_the_first_that_would_have_been_used() -> None:
    policy = Adaptive()
    for since in (0.0, 10.0, 20.0):
        policy.released(Idle(ALICE, since), since + 5.0)
    policy.started(ALICE, 30.0)
    assert policy.habits[ALICE].awaited == [0.0, 10.0]
    assert policy.habits[ALICE].counts[bin_of(10.0)] == 1.0
    policy.started(ALICE, 41.0)
    assert policy.habits[ALICE].counts[bin_of(31.0)] == 1.0
    policy.started(BOB, 41.0)  # never idle: nothing is known
    assert BOB not in policy.habits


def test_callers_that_never_come_back_lower_the_hold() -> None:
    life = Life()
    for i in range(40):
        life.gaps([10.0] * 2, Caller("default", f"c{i}"))
    assert life.gap(10.0, BOB) == edge(10.0)
    for i in range(400):
        life.never(Caller("default", f"gone{i}"))
    life.at += 1000.0
    for i in range(400, 420):
        life.never(Caller("default", f"gone{i}"))
    assert life.never(Caller("default", "gone")) == 0.0


def test_those_still_out_are_no_returns_of_their_caller_once_there_are_too_many() -> None:
    policy = Adaptive()
    for since in range(AWAITED + 3):
        policy.released(Idle(ALICE, float(since)), since + 1.0)
    habit = policy.habits[ALICE]
    assert habit.awaited == [float(since) for since in range(3, AWAITED + 3)]
    assert habit.counts[NEVER] == 3.0 and policy.gaps.counts[NEVER] == 3.0


# ---------------------------------------------------------------- state is bounded


def test_callers_are_bounded_and_the_longest_unseen_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adaptive, "CALLERS", 3)
    policy = Adaptive()
    names = [Caller("default", f"c{i}") for i in range(5)]
    for i, caller in enumerate(names[:3]):
        policy.hold_s(Idle(caller, float(i)), PRICES)
    policy.released(Idle(names[1], 1.0), 2.0)
    policy.hold_s(Idle(names[0], 5.0), PRICES)  # seen again
    policy.hold_s(Idle(names[3], 6.0), PRICES)
    policy.hold_s(Idle(names[4], 7.0), PRICES)
    assert list(policy.habits) == [names[0], names[3], names[4]]
    # What was awaited of a forgotten caller is a gap without return.
    assert policy.gaps._pending == [] and policy.gaps.counts[NEVER] == 1.0


def test_a_callers_state_does_not_grow() -> None:
    life = Life()
    life.gaps([1.0, 200.0] * 2000)
    habit = life.policy.habits[ALICE]
    assert len(habit.counts) == BINS + 1 and len(habit.awaited) <= AWAITED
    assert sum(habit.counts) < 1.5 * adaptive.CALLER_HALF_LIFE / 0.69
    assert len(life.policy.gaps._pending) <= AWAITED


# ---------------------------------------------------------------- closing


def test_a_closed_caller_leaves_no_open_gap() -> None:
    policy = Adaptive()
    for since in (1.0, 2.0):
        policy.released(Idle(ALICE, since), since + 1.0)
    policy.released(Idle(BOB, 3.0), 4.0)
    policy.closed(ALICE)
    policy.closed(CAROL)  # unknown
    assert policy.habits[ALICE].awaited == [] and policy.gaps._pending == [3.0]
    assert policy.gaps.seen == 0
    policy.started(ALICE, 100.0)  # one of that name came anew: no gap
    assert policy.gaps.seen == 0 and policy.habits[ALICE].seen == 0


def test_habits_outlive_closing() -> None:
    life = Life()
    life.gaps([1.0] * 40)
    life.policy.closed(ALICE)
    assert life.gap(1.0) == edge(1.0)


# ---------------------------------------------------------------- worth


def worth_of(policy: Adaptive, caller: Caller, age_s: float, prices: Prices = PRICES) -> float:
    return policy.worth(Idle(caller, 1000.0), 1000.0 + age_s, prices)


def test_a_caller_likely_to_be_back_soon_is_worth_more() -> None:
    life = Life()
    for _ in range(40):
        life.gap(0.5, ALICE)
        life.gap(30.0, BOB)
    assert worth_of(life.policy, ALICE, 0.45) > 5 * worth_of(life.policy, BOB, 0.45)
    # Past its usual gap it is unlikely to come soon.
    assert worth_of(life.policy, ALICE, 5.0) < worth_of(life.policy, ALICE, 0.45) / 5


def test_worth_is_the_hazard_times_the_start_it_saves_per_gpu() -> None:
    life = Life()
    life.gaps([2.0] * 50)
    one = worth_of(life.policy, ALICE, 1.9)
    begin_s, end_s = EDGES_S[bin_of(2.0) - 1], EDGES_S[bin_of(2.0) + 1]
    assert isclose(one, 20.0 / (end_s - begin_s))
    assert isclose(worth_of(life.policy, ALICE, 1.9, PRICES._replace(gpus=4.0)), one / 4)
    assert isclose(worth_of(life.policy, ALICE, 1.9, PRICES._replace(cold_s=40.0)), 2 * one)


def test_where_nothing_is_known_nothing_is_worth_more_than_anything_else() -> None:
    policy = Adaptive()
    assert worth_of(policy, ALICE, 1.0) == worth_of(policy, BOB, 50.0) == 0.0


def test_worth_follows_what_is_learned() -> None:
    life = Life()
    life.gaps([30.0] * 20)
    before = worth_of(life.policy, ALICE, 0.45)
    life.gaps([0.5] * 60)
    assert worth_of(life.policy, ALICE, 0.45) > before


# ---------------------------------------------------------------- the fixed ones, and forms


def test_a_fixed_time_to_live_learns_nothing() -> None:
    policy = Fixed(7.0)
    assert policy.hold_s(Idle(ALICE, 0.0), PRICES) == 7.0
    policy.reused(Idle(ALICE, 0.0), 1.0)
    policy.released(Idle(ALICE, 0.0), 7.0)
    policy.started(ALICE, 9.0)
    assert policy.hold_s(Idle(ALICE, 0.0), PRICES) == 7.0
    assert policy.worth(Idle(ALICE, 1.0), 5.0, PRICES) < policy.worth(Idle(BOB, 2.0), 5.0, PRICES)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("adaptive", Form("adaptive")),
        ("never", Form("never", 0.0)),
        ("always", Form("always", INF)),
        ("fixed:60", Form("fixed", 60.0)),
        ("fixed:0", Form("fixed", 0.0)),
        ("fixed:0.5", Form("fixed", 0.5)),
    ],
)
def test_forms(text: str, form: Form) -> None:
    assert keepalive.parse(text) == form


@pytest.mark.parametrize(
    "text",
    ["", "fixed", "fixed:", "fixed:x", "fixed:-1", "fixed:inf", "fixed:nan", "fixed:1:2"]
    + ["never:1", "always:", "adaptive:3", "Adaptive", "lru", " never"],
)
def test_what_is_no_form_is_told_with_those_that_are(text: str) -> None:
    with pytest.raises(ValueError, match="adaptive, fixed:SECONDS") as told:
        keepalive.parse(text)
    assert repr(text) in str(told.value)


# ---------------------------------------------------------------- last in, first out


@pytest.mark.parametrize("step", [1, -1])
def test_the_most_recently_freed_worker_of_a_caller_is_used_first(step: int) -> None:
    desk = ready(p=3)
    leases = desk.hold("c1", count=3)[::step]
    for since, lease in enumerate(leases):
        desk.idle(lease, since=float(since))
    taken = []
    for count in (1, 2, 3):
        (move,) = desk.sync("c2", want(), count=1, at=10.0 + count)
        assert isinstance(move, RevokeLease) and move.client == "c2"
        taken.append(move.worker)
        desk.do(ev.RevokeAnswered(desk.at, move.worker, move.fence, "moved"))
    assert taken == [lease.worker for lease in leases[::-1]]
