"""Integrals of GPUs by state, curves of bounded length, and Jain's index."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firepool_ray.core.model import Caller, QueueSpec
from firepool_ray.errors import InternalError
from firepool_ray.sim.accounts import (
    BUSY,
    FREE,
    IDLE,
    NOWHERE,
    POINTS,
    STATES,
    GpuAccounts,
    Latencies,
    Starts,
)
from firepool_ray.sim.clock import Channel, Clock
from firepool_ray.sim.costs import Constant, Costs, Draws, Uniform
from firepool_ray.sim.fairness import Fairness, jain, water_fill


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_integrals_and_curve_agree_with_a_plain_sum(seed: int) -> None:
    chance = random.Random(seed)
    begin_s = chance.choice((0.0, -50.0, 1e6))
    accounts = GpuAccounts(begin_s)
    at, lanes = begin_s, [NOWHERE] * 6
    sizes = [1.0, 1.0, 2.0, 0.5, 4.0, 1.0]
    expected = [0.0] * len(STATES)
    peak = 0.0
    for _ in range(80):
        step_s = chance.choice((0.0, 0.01, 0.3, 2.0, 40.0, 3000.0))
        for lane, state in enumerate(lanes):
            if state != NOWHERE:
                expected[state] += sizes[lane] * step_s
        at += step_s
        lane = chance.randrange(6)
        new = chance.choice((NOWHERE, BUSY, IDLE, FREE))
        if new != lanes[lane]:
            accounts.change(at, lanes[lane], new, sizes[lane])
            lanes[lane] = new
        peak = max(peak, sum(s for s, state in zip(sizes, lanes, strict=True) if state >= 0))
    accounts.advance(at)
    assert accounts.gpu_s == pytest.approx(expected)
    assert accounts.peak_gpus == peak
    curve = accounts.curve()
    bins = len(curve.gpus["busy"])
    assert bins <= POINTS
    widths = [curve.bin_s] * (bins - 1) + [at - begin_s - (bins - 1) * curve.bin_s]
    for state, name in enumerate(STATES):
        total = sum(g * w for g, w in zip(curve.gpus[name], widths, strict=True))
        assert total == pytest.approx(expected[state], abs=1e-3)


def test_served_jobs_stay_in_their_bins_when_these_widen() -> None:
    accounts = GpuAccounts(0.0)
    for second in range(5000):
        accounts.advance(float(second))
        accounts.served(float(second), "warm" if second % 2 else "cold")
    curve = accounts.curve()
    assert curve.bin_s == 8.0
    assert sum(curve.served["warm"]) == sum(curve.served["cold"]) == 2500
    assert set(curve.served["warm"][:-1]) == {4}


def test_only_the_part_of_a_start_that_had_the_lane_to_itself_is_paid() -> None:
    starts = Starts()
    starts.started(2.0, 1.0)
    starts.started(2.0, 0.25)
    starts.given_up(1.0, 0.5)
    starts.granted("warm", 4.0)
    starts.granted("cold", 4.0)
    starts.granted("standby", 4.0)
    starts.granted("handover", 1.0)
    assert starts.counts == {"cold": 1, "refill": 1, "standby": 1, "handover": 1}
    assert starts.cold_gpus == 2.0 + 0.5 + 0.5
    assert starts.promoted_gpus == 5.0


def test_latencies_by_source_and_queue() -> None:
    latencies = Latencies()
    latencies.note("warm", "a", 0.0)
    latencies.note("cold", "a", 20.0)
    latencies.note("cold", "b", 3.0)
    assert latencies.longest_s == {"a": 20.0, "b": 3.0}
    assert sum(latencies.counts["cold"].values()) == 2


# -- time --------------------------------------------------------------------------------------


def test_messages_arrive_in_order_on_one_way() -> None:
    clock = Clock(Draws(Costs(message=Uniform(0, 1)), 3))
    seen: list[int] = []
    channel = Channel()
    for number in range(50):
        clock.send(channel, seen.append, number)
    times = []
    while clock.next_at() < float("inf"):
        clock.step()
        times.append(clock.now)
    assert seen == list(range(50))
    assert times == sorted(times)
    assert times[-1] > 0.9


def test_instant_messages_come_before_anything_planned() -> None:
    clock = Clock(Draws(Costs(message=Constant(0.0)), 0))
    seen: list[str] = []
    clock.at(0.0, seen.append, "planned")
    clock.send(Channel(), seen.append, "sent")
    clock.soon(seen.append, "soon")
    while clock.next_at() < float("inf"):
        clock.step()
    assert seen == ["sent", "soon", "planned"]


def test_time_that_stands_still_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firepool_ray.sim.clock.MOST_AT_ONCE", 100)
    clock = Clock(Draws(Costs(), 0))

    def again(_: None) -> None:
        clock.soon(again, None)

    clock.at(7.0, again, None)
    with pytest.raises(InternalError, match="time stands still at 7 s"):
        while True:
            clock.step()


# -- fairness ----------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 20), st.floats(0.1, 5)), min_size=1, max_size=8),
    st.floats(0, 60),
)
def test_water_filling(parts: list[tuple[float, float]], amount: float) -> None:
    wanted, weights = [part[0] for part in parts], [part[1] for part in parts]
    got = water_fill(wanted, weights, amount)
    assert sum(got) == pytest.approx(min(amount, sum(wanted)), abs=1e-6)
    assert all(0 <= g <= w + 1e-9 for g, w in zip(got, wanted, strict=True))
    # whoever lacks something has by weight no less than anybody else
    lacking = [i for i in range(len(got)) if got[i] < wanted[i] - 1e-6]
    for i in lacking:
        assert all(got[i] / weights[i] >= got[j] / weights[j] - 1e-6 for j in range(len(got)))


def test_jain() -> None:
    assert jain([(1, 1), (5, 5), (0, 0)]) == 1.0
    assert jain([(1, 1), (0, 1)]) == 0.5
    assert jain([]) == 1.0


def _fairness(capacity: float, *queues: QueueSpec) -> tuple[Clock, Fairness]:
    clock = Clock(Draws(Costs(), 0))
    return clock, Fairness(clock, queues, capacity)


def test_a_greedy_caller_makes_it_unfair() -> None:
    clock, book = _fairness(10.0, QueueSpec("q"))
    greedy, light = (book.share_of(Caller("q", name)) for name in ("greedy", "light"))
    for _ in range(30):
        greedy.wants(1.0)
    for _ in range(10):
        greedy.starts(1.0)
    light.wants(5.0)
    clock.now = 100.0
    book.look()
    # each deserves 5: greedy has 10, light nothing
    assert greedy.received_gpu_s == pytest.approx(2 * greedy.deserved_gpu_s)
    assert light.deserved_gpu_s == pytest.approx(500, rel=0.01)
    assert book.jain_callers() == pytest.approx(0.5)
    assert book.jain_queues() == 1.0
    assert book.peak_wanted_gpus == 35.0


def test_quotas_come_first_then_weights() -> None:
    clock, book = _fairness(
        12.0, QueueSpec("a", quota=2.0), QueueSpec("b", quota=4.0, weight=2.0, limit=7.0)
    )
    a, b = book.share_of(Caller("a", "x")), book.share_of(Caller("b", "x"))
    a.wants(20.0)
    b.wants(20.0)
    a.starts(8.0)
    b.starts(4.0)
    clock.now = 10.0
    book.look()
    # of the 6 beyond the quotas b would get 4, but its limit leaves it 3
    assert b.deserved_gpu_s == pytest.approx(70, rel=0.02)
    assert a.deserved_gpu_s == pytest.approx(50, rel=0.02)
    assert book.jain_queues() < 1.0


def test_nobody_waits_where_there_is_room() -> None:
    clock, book = _fairness(float("inf"), QueueSpec("q"))
    for number in range(4):
        share = book.share_of(Caller("q", f"c{number}"))
        share.wants(1.0)
        share.starts(1.0)
    clock.now = 50.0
    for number in range(4):
        book.share_of(Caller("q", f"c{number}")).ends(1.0)
    assert book.jain_callers() == pytest.approx(1.0)
    clock.now = 500.0
    book.look()
    assert book.share_of(Caller("q", "c0")).received_gpu_s == pytest.approx(50, abs=0.2)
