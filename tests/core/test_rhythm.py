"""A caller's bursts and pauses by themselves: when is the next burst due, and does telling pay?"""

from __future__ import annotations

import math
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firepool_ray.core.costs import HALF_LIFE_S, Mean, Rate
from firepool_ray.core.rhythm import EARLY, LATE, Rhythm
from tests.core.desk import want

#: A start from nothing, in most of what follows.
START_S = 20.0


def rhythm(*pauses_s: float, peak: int = 4, held_s: float = 5.0) -> Rhythm:
    """It has paused for so long, between bursts of ten seconds, and pauses again."""
    made = Rhythm("r", want().key, START_S)
    made.held_s = held_s
    at = 0.0
    for pause_s in (*pauses_s, None):
        made.works(peak)
        at += 10.0
        made.quiet_since = at
        if pause_s is not None:
            at += pause_s
            made.awake(at, held_s)
    return made


# ---------------------------------------------------------------- bursts and pauses


def test_the_first_work_ends_no_pause() -> None:
    made = Rhythm("r", want().key, START_S)
    assert made.awake(10.0, 5.0) is None
    assert made.pauses == 0 and made.sizes == []


def test_a_break_shorter_than_the_hold_belongs_to_the_burst() -> None:
    made = rhythm()
    made.works(2)
    assert made.awake(10.0 + 4.9, 5.0) is None
    assert made.pauses == 0 and made.sizes == [] and made.peak == 4
    assert made.quiet_since is None


def test_a_longer_one_is_a_pause_between_two_bursts() -> None:
    made = rhythm(peak=4)
    assert made.awake(10.0 + 5.0, 5.0) == 5.0
    assert (made.pauses, made.sizes, made.peak) == (1, [4], 0)


def test_no_time_at_all_is_no_pause_even_where_nothing_is_held() -> None:
    made = rhythm(held_s=0.0)
    assert made.awake(10.0, 0.0) is None
    assert made.pauses == 0


def test_the_share_of_pauses_among_all_breaks_is_followed() -> None:
    made = rhythm()
    assert made.pausing == 0.5
    made.awake(10.0 + 60.0, 5.0)
    assert isclose(made.pausing, 0.6)
    made.quiet_since = 80.0
    made.awake(81.0, 5.0)
    assert isclose(made.pausing, 0.48)


def test_what_is_warmed_is_the_median_of_the_last_three_bursts() -> None:
    made = Rhythm("r", want().key, START_S)
    assert made.workers == 0
    for peak, workers in ((4, 4), (9, 9), (5, 5), (5, 5), (1, 5), (1, 1)):
        made.works(peak)
        made.works(1)
        assert made.workers == workers  # the one that has just ended included
        made.quiet_since = 0.0
        made.awake(60.0, 5.0)
        assert made.workers == workers
    assert made.sizes == [5, 1, 1]


# ---------------------------------------------------------------- the next pause


def test_two_pauses_tell_the_next_one() -> None:
    assert rhythm().pause_s() is None
    assert rhythm(60.0).pause_s() is None
    assert rhythm(60.0, 60.0).pause_s() == pytest.approx((60.0, 60.0, 60.0))


def test_mean_and_spread_of_the_logarithm_by_hand() -> None:
    made = rhythm(50.0, 72.0)
    low, high = math.log(50.0), math.log(72.0)
    assert isclose(made.mean, (low + high) / 2)
    assert isclose(made.variance, ((high - low) / 2) ** 2)
    deviation = (high - low) / 2 * (1 + 1 / 2) ** 1.5
    earliest_s, mean_s, latest_s = made.pause_s() or (0.0, 0.0, 0.0)
    assert isclose(mean_s, 60.0)
    assert isclose(earliest_s, 60.0 * math.exp(-EARLY * deviation))
    assert isclose(latest_s, 60.0 * math.exp(LATE * deviation))


def test_the_more_pauses_the_narrower() -> None:
    few = rhythm(50.0, 72.0).pause_s()
    many = rhythm(*[50.0, 72.0] * 6).pause_s()
    assert few is not None and many is not None
    assert many[2] - many[0] < (few[2] - few[0]) / 1.5


def test_old_pauses_fade() -> None:
    made = rhythm(*[300.0] * 10, *[60.0] * 60)
    _, mean_s, _ = made.pause_s() or (0.0, 0.0, 0.0)
    assert isclose(mean_s, 60.0, rel_tol=0.01)


@given(st.lists(st.floats(5.0, 1e5), min_size=2, max_size=30))
def test_earliest_mean_and_latest_are_in_order(pauses_s: list[float]) -> None:
    found = rhythm(*pauses_s).pause_s()
    assert found is not None
    earliest_s, mean_s, latest_s = found
    assert 0 < earliest_s <= mean_s <= latest_s
    assert min(pauses_s) * 0.999 <= mean_s <= max(pauses_s) * 1.001


# ---------------------------------------------------------------- telling


def test_a_regular_pause_is_told() -> None:
    made = rhythm(60.0, 60.0, 60.0)
    since = made.quiet_since
    assert since is not None and made.predict(START_S)
    assert made.told and not made.due
    assert isclose(made.earliest, since + 60.0)
    # Past the latest it is worth waiting for as long as a start costs.
    assert isclose(made.until, since + 60.0 + START_S)


def test_nobody_can_tell_before_two_pauses_or_while_it_works() -> None:
    assert not rhythm(60.0).predict(START_S)
    made = rhythm(60.0, 60.0, 60.0)
    made.quiet_since = None
    assert not made.predict(START_S)
    assert not made.told


def test_an_irregular_pause_is_not_told() -> None:
    """To be ready for the earliest would cost more idle time than the start it hides."""
    made = rhythm(20.0, 600.0, 60.0, 1500.0)
    assert not made.predict(START_S)
    assert not made.told


def test_a_dearer_start_makes_less_regular_pauses_worth_telling() -> None:
    made = rhythm(*[50.0, 72.0] * 4)
    earliest_s, mean_s, _ = made.pause_s() or (0.0, 0.0, 0.0)
    assert not made.predict(mean_s - earliest_s - 0.1)
    assert made.predict(mean_s - earliest_s + 0.1)


# ---------------------------------------------------------------- whether telling pays


def told(earliest: float = 100.0, until: float = 150.0) -> Rhythm:
    made = rhythm(60.0, 60.0)
    made.told, made.earliest, made.until = True, earliest, until
    return made


@pytest.mark.parametrize(
    ("at", "gain_s"),
    [
        (100.0, 20.0),  # just in time: a start hidden
        (110.0, 10.0),  # and ten seconds idle
        (140.0, -20.0),  # idle for longer than the start it hid
        (90.0, 10.0),  # half of the start is hidden
        (50.0, 0.0),  # too early for anything to be ready
        (150.0, -30.0),
        (151.0, -70.0),  # given up by then: a start and all that time for nothing
        (None, -70.0),  # it did not come
    ],
)
def test_what_a_prediction_brings(at: float | None, gain_s: float) -> None:
    made = told()
    assert isclose(made.judge(at, START_S), gain_s, abs_tol=1e-9)
    assert made.judged == 1 and isclose(made.gain_s, gain_s, abs_tol=1e-9)


def test_the_gain_is_a_moving_mean() -> None:
    made = told()
    for at in (100.0, 110.0, 110.0):
        made.judge(at, START_S)
    assert isclose(made.gain_s, 40.0 / 3)
    for _ in range(3):
        made.judge(None, START_S)
    assert made.gain_s < 0


def test_predictions_are_followed_once_they_pay() -> None:
    made = told()
    assert not made.pays(0.0) and not made.pays(-1.0)
    assert made.pays(1.0)  # they pay for the profile
    made.judge(110.0, START_S)
    assert made.pays(-1.0) and made.pays(-4.9) and not made.pays(-5.1)
    made.judge(None, START_S)
    made.judge(None, START_S)
    assert not made.pays(1.0)


def test_its_own_experience_outweighs_the_profiles() -> None:
    made = told()
    for _ in range(30):
        made.judge(None, START_S)
    assert not made.pays(20.0)


# ---------------------------------------------------------------- pauses shorter than a start


def test_a_pause_shorter_than_a_start_is_bridged() -> None:
    """Whoever lets go would have to start again at once."""
    made = rhythm(*[15.0] * 4)
    assert isclose(made.bridge_s(START_S, START_S), 15.0 + START_S)


def test_a_longer_pause_is_not_bridged() -> None:
    assert rhythm(*[21.0] * 4).bridge_s(START_S, START_S) == 0.0
    assert rhythm(*[19.0] * 4).bridge_s(START_S, START_S) > 0.0


def test_a_pause_less_regular_than_what_its_caller_waits_is_not_bridged() -> None:
    made = rhythm(*[13.0, 17.0] * 4)
    earliest_s, mean_s, _ = made.pause_s() or (0.0, 0.0, 0.0)
    assert made.bridge_s(START_S, mean_s - earliest_s + 0.1) > 0.0
    assert made.bridge_s(START_S, mean_s - earliest_s - 0.1) == 0.0


def test_an_unknown_or_irregular_pause_is_not_bridged() -> None:
    assert rhythm(15.0).bridge_s(START_S, START_S) == 0.0
    assert rhythm(6.0, 600.0, 8.0, 900.0).bridge_s(START_S, START_S) == 0.0


def test_a_rare_pause_is_not_bridged() -> None:
    """Most breaks are shorter, and have a hold time of their own."""
    made = rhythm(*[15.0] * 4)
    at = made.quiet_since or 0.0
    for _ in range(10):
        made.awake(at + 1.0, 5.0)
        at += 2.0
        made.quiet_since = at
    assert made.pauses == 4 and made.bridge_s(START_S, START_S) == 0.0


# ---------------------------------------------------------------- means and rates


def test_the_first_measurement_replaces_the_guess() -> None:
    mean = Mean(100.0)
    assert mean.value == 100.0
    for measured, value in ((4.0, 4.0), (8.0, 6.0), (9.0, 7.0)):
        mean.add(measured)
        assert isclose(mean.value, value)


def test_a_guess_may_count_as_some_measurements() -> None:
    mean = Mean(10.0, 4)
    mean.add(20.0)
    assert isclose(mean.value, 12.0)


def test_a_mean_follows_what_changes() -> None:
    mean = Mean(0.0)
    for _ in range(1000):
        mean.add(1.0)
    for _ in range(200):
        mean.add(5.0)
    assert mean.value > 4.9


def test_a_rate_is_that_of_the_time_seen() -> None:
    rate = Rate()
    assert rate.per_s(5.0) == 0.0
    for second in range(100):
        rate.add(1000.0 + second, 3.0)
    assert isclose(rate.per_s(1100.0), 3.0, rel_tol=0.02)
    for second in range(100, 6000):
        rate.add(1000.0 + second, 3.0)
    assert isclose(rate.per_s(7000.0), 3.0, rel_tol=0.02)


def test_a_rate_fades() -> None:
    rate = Rate()
    for second in range(6000):
        rate.add(float(second), 3.0)
    before = rate.per_s(6000.0)
    assert isclose(rate.per_s(6000.0 + HALF_LIFE_S), before / 2, rel_tol=0.01)
    assert rate.per_s(6000.0 + 20 * HALF_LIFE_S) < 1e-5


def test_a_single_amount_is_no_rate_for_long() -> None:
    rate = Rate()
    rate.add(10.0, 30.0)
    assert rate.per_s(10.0) == 30.0  # of a second at least
    assert isclose(rate.per_s(40.0), 1.0, rel_tol=0.05)
