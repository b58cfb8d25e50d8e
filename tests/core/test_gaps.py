"""Idle gaps: the best hold, shares with gaps that are still open, decay, heavy tails."""

from __future__ import annotations

import random
from math import isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firepool_ray.core import gaps
from firepool_ray.core.gaps import (
    BINS,
    EDGES_S,
    FLOOR_S,
    NEVER,
    Gaps,
    best_hold,
    bin_of,
    hazards_per_s,
)

INF = float("inf")


def shares_of(**lengths: float) -> list[float]:
    """Weights by gap: ``shares_of(s1=3, never=1)`` has three gaps of a second, one of no return."""
    shares = [0.0] * (BINS + 1)
    for name, weight in lengths.items():
        shares[NEVER if name == "never" else bin_of(float(name[1:]))] += weight
    return shares


def cost_of(shares: list[float], hold_s: float, price_s: float) -> float:
    """E[min(gap, T)] + P(gap > T) * price, from the definition; T is zero or an edge."""
    cost = 0.0
    for i, share in enumerate(shares):
        if i < BINS and hold_s >= EDGES_S[i]:
            middle = EDGES_S[i] * 2 ** (-0.5 / 2) if i else FLOOR_S / 2
            cost += share * middle
        else:
            cost += share * (hold_s + price_s)
    return cost


# ---------------------------------------------------------------- bins


@given(st.floats(0.0, 1e9))
def test_a_gap_lies_within_its_bin(gap_s: float) -> None:
    i = bin_of(gap_s)
    assert i == BINS - 1 or gap_s <= EDGES_S[i] * (1 + 1e-9)
    assert i == 0 or gap_s >= EDGES_S[i - 1] * (1 - 1e-9)


def test_bins_reach_from_the_floor_to_a_day() -> None:
    assert bin_of(0.0) == bin_of(FLOOR_S) == 0
    assert bin_of(FLOOR_S * 1.01) == 1
    assert 86_400 < EDGES_S[-1] < 5 * 86_400
    assert bin_of(1e300) == BINS - 1


# ---------------------------------------------------------------- the best hold


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(0.0, 50.0)), min_size=BINS + 1, max_size=BINS + 1),
    st.floats(0.01, 5000.0),
    st.sampled_from([1.0, 2.0, 10.0, INF]),
)
def test_no_edge_is_cheaper_than_the_best_hold(
    shares: list[float], price_s: float, times: float
) -> None:
    longest_s = times * price_s
    hold = best_hold(shares, price_s, longest_s)
    costs = [cost_of(shares, edge, price_s) for edge in EDGES_S if edge <= longest_s]
    least = min([cost_of(shares, 0.0, price_s), *costs])
    assert hold.hold_s == 0.0 or hold.hold_s in EDGES_S
    assert hold.hold_s <= longest_s
    assert isclose(cost_of(shares, hold.hold_s, price_s), least, rel_tol=1e-9, abs_tol=1e-9)


def test_what_the_best_hold_brings() -> None:
    # Three of four come back within a second, one after a day: hold for the three.
    hold = best_hold(shares_of(s1=3, s80000=1), 20.0, 40.0)
    edge_s = EDGES_S[bin_of(1.0)]
    assert hold.hold_s == edge_s
    assert hold.warm == 0.75
    middle_s = edge_s / 2**0.25
    assert isclose(hold.idle_s, (3 * middle_s + edge_s) / 4)


def test_nothing_is_held_where_nobody_comes_back() -> None:
    assert best_hold(shares_of(never=5), 20.0, 40.0) == (0.0, 0.0, 0.0)
    assert best_hold([0.0] * (BINS + 1), 20.0, 40.0) == (0.0, 0.0, 0.0)
    assert best_hold(shares_of(s10=1), 0.0, 0.0) == (0.0, 0.0, 0.0)


def test_a_return_that_costs_more_idle_time_than_a_start_is_not_waited_for() -> None:
    assert best_hold(shares_of(s30=1), 20.0, INF).hold_s == 0.0
    assert best_hold(shares_of(s30=1), 40.0, INF).hold_s == EDGES_S[bin_of(30.0)]


def test_a_second_mode_is_held_for_only_where_it_pays() -> None:
    two = shares_of(s1=1, s30=1)
    assert best_hold(two, 20.0, 40.0).hold_s == EDGES_S[bin_of(1.0)]
    assert best_hold(two, 60.0, 120.0).hold_s == EDGES_S[bin_of(30.0)]
    assert best_hold(two, 60.0, 20.0).hold_s == EDGES_S[bin_of(1.0)]  # never beyond the longest


# ---------------------------------------------------------------- hazards


def test_the_hazard_is_the_chance_over_an_octave_per_second() -> None:
    i = bin_of(10.0)
    shares = [0.0] * (BINS + 1)
    shares[i], shares[i + 1], shares[i + 4], shares[NEVER] = 2.0, 1.0, 1.0, 4.0
    hazards = hazards_per_s(shares)
    assert isclose(hazards[i], 3 / 8 / (EDGES_S[i + 1] - EDGES_S[i - 1]))
    assert isclose(hazards[i + 1], 1 / 6 / (EDGES_S[i + 2] - EDGES_S[i]))
    assert isclose(hazards[i + 4], 1 / 5 / (EDGES_S[i + 5] - EDGES_S[i + 3]))
    assert hazards[i + 5] == 0.0
    assert hazards_per_s([0.0] * (BINS + 1)) == [0.0] * BINS


def test_with_a_heavy_tail_the_hazard_falls() -> None:
    chance = random.Random(1)
    seen = Gaps(INF)
    for _ in range(5000):
        seen.add(chance.paretovariate(0.9))
    hazards = hazards_per_s(seen.shares(0.0))
    ages = [2.0, 8.0, 32.0, 128.0]
    values = [hazards[bin_of(age)] for age in ages]
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0] / 20


# ---------------------------------------------------------------- shares


def test_without_any_gap_nobody_is_expected_back() -> None:
    shares = Gaps(100.0).shares(0.0)
    assert shares[NEVER] == 1.0 and sum(shares) == 1.0


def test_shares_of_gaps_that_are_all_closed_are_their_frequencies() -> None:
    seen = Gaps(INF)
    for gap_s in (1.0, 1.0, 1.0, 30.0):
        seen.add(gap_s)
    shares = seen.shares(0.0)
    assert isclose(shares[bin_of(1.0)], 0.75)
    assert isclose(shares[bin_of(30.0)], 0.25)
    assert isclose(shares[NEVER], 0.0, abs_tol=1e-12)


def test_open_gaps_count_among_those_they_have_outlived() -> None:
    """Two came back after 1 s, one after 30 s; one has been out since time 0."""
    seen = Gaps(INF)
    seen.let_go(0.0)
    for gap_s in (1.0, 1.0, 30.0):
        seen.add(gap_s)
    # At 5 s it has outlived the first bin, not the second: 2 of 4, then 1 of 1.
    shares = seen.shares(5.0)
    assert isclose(shares[bin_of(1.0)], 0.5)
    assert isclose(shares[bin_of(30.0)], 0.5)
    assert isclose(shares[NEVER], 0.0, abs_tol=1e-12)
    # At 100 s it has outlived both: 2 of 4, then 1 of 2, and who knows of the rest.
    shares = seen.shares(100.0)
    assert isclose(shares[bin_of(1.0)], 0.5)
    assert isclose(shares[bin_of(30.0)], 0.25)
    assert isclose(shares[NEVER], 0.25)


def test_one_watched_for_a_while_only_counts_until_then() -> None:
    """Two came back after 1 s, one after 30 s; one more was watched for 5 s."""
    seen = Gaps(INF)
    seen.censor(5.0)
    for gap_s in (1.0, 1.0, 30.0):
        seen.add(gap_s)
    shares = seen.shares(0.0)
    assert isclose(shares[bin_of(1.0)], 0.5)
    assert isclose(shares[bin_of(30.0)], 0.5)
    assert isclose(shares[NEVER], 0.0, abs_tol=1e-12)


def test_an_open_gap_tells_nothing_before_it_has_outlived_anything() -> None:
    seen = Gaps(INF)
    seen.add(1.0)
    seen.let_go(100.0)
    assert isclose(seen.shares(100.5)[bin_of(1.0)], 1.0)


def test_a_return_closes_the_gap_with_its_true_length() -> None:
    seen = Gaps(INF)
    seen.add(1.0)
    seen.let_go(10.0)
    seen.returned(10.0, 40.0)
    shares = seen.shares(1000.0)
    assert seen.seen == 2
    assert isclose(shares[bin_of(1.0)], 0.5) and isclose(shares[bin_of(30.0)], 0.5)


def test_lost_is_no_return_and_forgotten_is_nothing() -> None:
    seen = Gaps(INF)
    seen.add(1.0)
    seen.let_go(10.0)
    seen.let_go(10.0)
    seen.lost(10.0)
    seen.forget(10.0)
    seen.lost(10.0)  # known no more: nothing happens
    shares = seen.shares(1e6)
    assert seen.seen == 2
    assert isclose(shares[bin_of(1.0)], 0.5) and isclose(shares[NEVER], 0.5)


@given(
    st.lists(st.floats(0.0, 1e6), max_size=40),
    st.lists(st.floats(0.0, 1e6), max_size=40),
    st.floats(0.0, 2e6),
)
def test_shares_are_a_distribution(closed: list[float], out: list[float], at: float) -> None:
    seen = Gaps(100.0)
    for gap_s in closed:
        seen.add(gap_s)
    for since in out:
        seen.let_go(since)
    shares = seen.shares(at)
    assert all(share >= 0.0 for share in shares)
    assert isclose(sum(shares), 1.0, abs_tol=1e-9)


def test_old_gaps_count_half_after_each_half_life() -> None:
    seen = Gaps(64.0)
    for _ in range(64):
        seen.add(1.0)
    for _ in range(64):
        seen.add(30.0)
    older, newer = seen.counts[bin_of(1.0)], seen.counts[bin_of(30.0)]
    assert isclose(older, newer / 2)
    assert older + newer < 64.0


def test_a_habit_that_changed_is_followed() -> None:
    seen = Gaps(50.0)
    for _ in range(500):
        seen.add(1.0)
    for _ in range(500):
        seen.add(30.0)
    assert seen.shares(0.0)[bin_of(30.0)] > 0.99


def test_the_picture_is_drawn_anew_when_enough_has_changed_or_time_has_passed() -> None:
    seen = Gaps(INF)
    for _ in range(100):
        seen.add(1.0)
    before = seen.shares(0.0)
    seen.add(30.0)
    assert seen.shares(1.0) is before  # one per cent more
    seen.add(30.0)
    seen.add(30.0)
    assert isclose(seen.shares(1.0)[bin_of(30.0)], 3 / 103)
    seen.let_go(1.0)
    assert seen.shares(200.0)[NEVER] > 0.0


def test_what_is_out_is_bounded() -> None:
    seen = Gaps(INF)
    for since in range(gaps._PENDING + 100):
        seen.let_go(float(since))
    assert len(seen._pending) == gaps._PENDING
    assert seen.seen == 100 and seen.counts[NEVER] == 100.0  # the oldest are given up
    assert min(seen._pending) == 100.0


# ---------------------------------------------------------------- heavy tails


def mean_cost(lengths: list[float], hold_s: float, price_s: float) -> float:
    return sum(g if g <= hold_s else hold_s + price_s for g in lengths) / len(lengths)


@pytest.mark.parametrize(("tail", "times"), [(0.4, 30.0), (0.5, 5.0), (0.7, 1.3), (1.1, 1.0)])
@pytest.mark.parametrize("price_s", [5.0, 20.0, 60.0])
def test_a_heavy_tail_is_held_for_no_longer_than_it_pays(
    tail: float, times: float, price_s: float
) -> None:
    """A time to live that covers 99 % of the history waits for ever for the last ones."""
    chance = random.Random(7)
    lengths = [0.5 * chance.paretovariate(tail) for _ in range(4000)]
    seen = Gaps(INF)
    for length in lengths:
        seen.add(length)
    hold = best_hold(seen.shares(0.0), price_s, 2 * price_s)
    assert hold.hold_s <= 2 * price_s
    best = min(mean_cost(lengths, i * price_s / 200, price_s) for i in range(401))
    mine = mean_cost(lengths, hold.hold_s, price_s)
    assert mine <= 1.02 * best
    covering = mean_cost(lengths, sorted(lengths)[int(0.99 * len(lengths))], price_s)
    assert covering > times * mine
