"""Comparison policies: each rule of its paper, on a few idle workers by hand."""

from __future__ import annotations

import math

import pytest

from firepool_ray.core.keepalive import Idle, Prices
from firepool_ray.core.model import Caller
from firepool_ray.errors import UsageError
from firepool_ray.sim import rivals
from firepool_ray.sim.figures_replay import replay
from firepool_ray.sim.rivals import GreedyDual, HybridHistogram, LruTtl
from firepool_ray.sim.traces import TraceJob

A, B = Caller("default", "a"), Caller("default", "b")
PRICES = Prices(cold_s=10.0, promote_s=1.0, gpus=2.0)


def test_lru_holds_for_its_ttl_and_evicts_the_oldest() -> None:
    policy = LruTtl(30.0)
    old, new = Idle(A, 5.0), Idle(B, 8.0)
    assert policy.hold_s(old, PRICES) == 30.0
    assert policy.worth(old, 9.0, PRICES) < policy.worth(new, 9.0, PRICES)


def test_greedy_dual_weighs_frequency_and_cost_by_size() -> None:
    policy = GreedyDual()
    policy.started(A, 0.0)
    policy.started(B, 0.0)
    often, once = Idle(A, 3.0), Idle(B, 3.0)
    for _ in range(3):
        assert policy.hold_s(often, PRICES) == math.inf
    policy.hold_s(once, PRICES)
    assert policy.worth(often, 4.0, PRICES) == 3 * 10.0 / 2.0
    assert policy.worth(once, 4.0, PRICES) == 1 * 10.0 / 2.0


def test_greedy_dual_ages_by_its_clock() -> None:
    policy = GreedyDual()
    for caller in (A, B):
        policy.started(caller, 0.0)
    first = Idle(A, 1.0)
    policy.hold_s(first, PRICES)
    policy.released(first, 2.0)
    assert policy.clock == 5.0
    later = Idle(B, 3.0)
    policy.hold_s(later, PRICES)
    assert policy.worth(later, 4.0, PRICES) == 5.0 + 5.0


def test_greedy_dual_counts_anew_once_no_worker_is_left() -> None:
    policy = GreedyDual()
    policy.started(A, 0.0)
    policy.started(A, 0.0)
    one, two = Idle(A, 1.0), Idle(A, 1.0)
    policy.hold_s(one, PRICES)
    policy.hold_s(two, PRICES)
    policy.released(one, 2.0)
    policy.hold_s(two, PRICES)
    assert two.mark == policy.clock + 3 * 5.0
    policy.released(two, 3.0)
    policy.started(A, 4.0)
    policy.hold_s(again := Idle(A, 5.0), PRICES)
    assert again.mark == policy.clock + 5.0


def test_hybrid_holds_the_whole_range_while_it_knows_little() -> None:
    policy = HybridHistogram()
    assert policy.hold_s(Idle(A, 0.0), PRICES) == HybridHistogram.BINS * 10.0


def test_hybrid_holds_to_the_tail_of_regular_idle_times_and_a_margin() -> None:
    policy = HybridHistogram()
    for call in range(100):
        idle = Idle(A, 100.0 * call)
        policy.hold_s(idle, PRICES)
        policy.reused(idle, idle.since + (35.0 if call else 75.0))
    # 99 of 100 idle times end in the fourth bin of 10 s.
    assert policy.hold_s(Idle(A, 1e4), PRICES) == pytest.approx(4 * 10.0 * 1.1)
    assert policy.hold_s(Idle(B, 1e4), PRICES) == HybridHistogram.BINS * 10.0


def test_hybrid_counts_idle_times_that_outlasted_the_worker() -> None:
    policy = HybridHistogram()
    for call in range(10):
        idle = Idle(A, 100.0 * call)
        policy.hold_s(idle, PRICES)
        policy.released(idle, idle.since + 5.0)
        policy.started(A, idle.since + 12.0)
    assert policy.hold_s(Idle(A, 1e4), PRICES) == pytest.approx(2 * 10.0 * 1.1)


def test_hybrid_trusts_no_histogram_that_is_flat_or_out_of_bounds() -> None:
    flat, beyond = HybridHistogram(), HybridHistogram()
    for call in range(480):
        for policy, gap_s in ((flat, 10.0 * (call % 240)), (beyond, 1e6)):
            idle = Idle(A, 0.0)
            policy.hold_s(idle, PRICES)
            policy.reused(idle, gap_s)
    for policy in (flat, beyond):
        assert policy.hold_s(Idle(A, 0.0), PRICES) == HybridHistogram.BINS * 10.0


def test_hybrid_forgets_the_callers_it_has_not_heard_of_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rivals, "CALLERS", 3)
    policy = HybridHistogram()
    for number in range(10):
        policy.hold_s(Idle(Caller("default", f"c{number}"), 0.0), PRICES)
    assert [caller.name for caller in policy._seen] == ["c7", "c8", "c9"]


def test_parse() -> None:
    lru = rivals.parse("lru:60")
    assert isinstance(lru, LruTtl)
    assert lru.ttl_s == 60.0
    assert isinstance(rivals.parse("greedy-dual"), GreedyDual)
    assert isinstance(rivals.parse("hybrid"), HybridHistogram)
    for other in ("fixed:30", "adaptive", "always", "never", ""):
        assert rivals.parse(other) is None


@pytest.mark.parametrize("wrong", ["lru", "lru:", "lru:soon", "lru:-1", "lru:nan", "hybrid:3"])
def test_wrong_numbers_are_refused(wrong: str) -> None:
    with pytest.raises(UsageError):
        rivals.parse(wrong)


# ------------------------------------------------------------------ replayed without an engine


def jobs(*starts: tuple[str, float, float]) -> list[TraceJob]:
    return [TraceJob(*one) for one in starts]


def test_replay_counts_warm_starts_idle_seconds_and_the_tail() -> None:
    ran = replay(jobs(("a", 0, 2), ("a", 5, 1), ("a", 20, 1)), LruTtl(4.0), 10.0)
    assert (ran.jobs, ran.warm, ran.cold_gpus) == (3, 1, 2.0)
    assert ran.idle_gpu_s == 3 + 4 + 4
    assert ran.cost_gpu_s(10.0) == 31.0


def test_replay_reuses_the_last_freed_first() -> None:
    ran = replay(jobs(("a", 0, 2), ("a", 0, 8), ("a", 9, 1)), LruTtl(7.5), 10.0)
    assert ran.warm == 1
    # Freed at 2 and held to 9.5; freed at 8, reused at 9, freed at 10 and held to 17.5.
    assert ran.idle_gpu_s == 7.5 + 1 + 7.5


def test_a_hold_that_ends_as_the_next_job_begins_serves_it() -> None:
    assert replay(jobs(("a", 0, 2), ("a", 6, 1)), LruTtl(4.0), 10.0).warm == 1
    assert replay(jobs(("a", 0, 2), ("a", 2, 1)), LruTtl(0.0), 10.0).warm == 1
    assert replay(jobs(("a", 0, 2), ("a", 6.5, 1)), LruTtl(4.0), 10.0).warm == 0


def test_replay_told_of_the_last_job_holds_nothing_after_it() -> None:
    ran = replay(jobs(("a", 0, 2), ("a", 5, 1)), LruTtl(100.0), 10.0, closing=True)
    assert ran.idle_gpu_s == 3.0


def test_under_a_cap_the_least_worth_goes() -> None:
    trace = jobs(("a", 0, 1), ("b", 0, 2), ("c", 3, 1), ("a", 5, 1), ("b", 6, 1))
    ran = replay(trace, LruTtl(100.0), 10.0, cap_gpus=2.0)
    # When c begins a has been idle for longest and goes; when a begins again, b (idle since 2)
    # goes before c (idle since 4).
    assert ran.warm == 0
    assert replay(trace, LruTtl(100.0), 10.0, cap_gpus=3.0).warm == 2


def test_holding_for_ever_ends_with_the_trace() -> None:
    ran = replay(jobs(("a", 0, 1), ("b", 9, 1)), GreedyDual(), 10.0)
    assert ran.idle_gpu_s == 9.0
