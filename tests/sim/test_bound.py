"""The clairvoyant bound against brute force: every way to serve each job, tried out."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firepool_ray.errors import UsageError
from firepool_ray.sim import bound
from firepool_ray.sim.bound import Standby
from firepool_ray.sim.traces import TraceJob

COLD_S = 10.0


def job(caller: str, start_s: float, duration_s: float, gpus: float = 1.0) -> TraceJob:
    return TraceJob(caller, start_s, duration_s, gpus=gpus)


# ------------------------------------------------------------------ brute force


def pairings(jobs: list[TraceJob], across: bool) -> Iterator[list[tuple[str, int]]]:
    """Every way: per job ``cold``, or ``held`` or (``across``) ``stock`` after an earlier one."""

    def ways(index: int, used: frozenset[int]) -> Iterator[list[tuple[str, int]]]:
        if index == len(jobs):
            yield []
            return
        mine = jobs[index]
        choices = [("cold", -1)]
        for other, theirs in enumerate(jobs):
            if other in used or other == index:
                continue
            if theirs.start_s + theirs.duration_s > mine.start_s or other > index:
                continue
            if theirs.caller == mine.caller and theirs.gpus == mine.gpus:
                choices.append(("held", other))
            if across and theirs.gpus == mine.gpus:
                choices.append(("stock", other))
        for choice in choices:
            for rest in ways(index + 1, used | {choice[1]} - {-1}):
                yield [choice, *rest]

    yield from ways(0, frozenset())


def cost_of(jobs: list[TraceJob], way: list[tuple[str, int]], standby: Standby | None) -> float:
    total = 0.0
    for mine, (kind, other) in zip(jobs, way, strict=True):
        if kind == "cold":
            total += COLD_S * mine.gpus
            continue
        gap = mine.start_s - jobs[other].start_s - jobs[other].duration_s
        if kind == "held":
            total += gap * mine.gpus
        else:
            assert standby is not None
            total += (standby.h2 * gap + standby.promote_s) * mine.gpus
    return total


def fits(jobs: list[TraceJob], way: list[tuple[str, int]], cap: bound.Steps) -> bool:
    """Busy and held GPUs within the cap wherever something is held."""
    held = [
        (jobs[o].start_s + jobs[o].duration_s, mine.start_s, mine.gpus)
        for mine, (kind, o) in zip(jobs, way, strict=True)
        if kind == "held"
    ]
    ends = [j.start_s + j.duration_s for j in jobs]
    times = sorted({*(j.start_s for j in jobs), *ends, *(at for at, _ in cap)})
    for begin, end in itertools.pairwise(times):
        middle = (begin + end) / 2
        idle = sum(g for a, b, g in held if a < middle < b)
        busy = sum(j.gpus for j, e in zip(jobs, ends, strict=True) if j.start_s < middle < e)
        now = next((v for at, v in reversed(cap) if at < middle), cap[0][1])
        if idle and idle > max(0.0, now - busy) + 1e-9:
            return False
    return True


def least(jobs: list[TraceJob], cap: bound.Steps | None = None) -> float:
    return min(
        cost_of(jobs, way, None)
        for way in pairings(jobs, across=False)
        if cap is None or fits(jobs, way, cap)
    )


def jobs_of(
    sizes: tuple[float, ...] = (1.0,), most: int = 6, shortest: int = 0
) -> st.SearchStrategy[list[TraceJob]]:
    one = st.builds(
        job,
        st.sampled_from("ab"),
        st.integers(0, 30).map(float),
        st.integers(shortest, 12).map(float),
        st.sampled_from(sizes),
    )
    return st.lists(one, min_size=1, max_size=most).map(lambda js: sorted(js, key=_start))


def _start(one: TraceJob) -> float:
    return one.start_s


caps = st.one_of(
    st.integers(0, 4).map(lambda v: [(0.0, float(v))]),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), min_size=1, max_size=3).map(
        lambda steps: sorted({float(at): float(v) for at, v in steps}.items())
    ),
)


# ------------------------------------------------------------------ pairing


def test_pairs_the_last_freed_first() -> None:
    jobs = [job("a", 0, 2), job("a", 1, 4), job("a", 6, 1), job("a", 9, 1)]
    pairing = bound.pair(jobs)
    assert [(g.begin_s, g.end_s) for g in pairing.gaps] == [(5.0, 6.0), (7.0, 9.0)]
    assert pairing.compulsory == 2.0
    assert pairing.jobs == 4


def test_compulsory_starts_are_the_most_that_ran_at_once_per_caller() -> None:
    jobs = [job("a", 0, 5), job("b", 1, 5), job("a", 2, 5, 1.0), job("a", 5, 1), job("b", 6, 1)]
    assert bound.pair(jobs).compulsory == 3.0


def test_workers_of_other_sizes_profiles_and_queues_do_not_follow() -> None:
    jobs = [
        TraceJob("a", 0, 1),
        TraceJob("a", 2, 1, profile="other"),
        TraceJob("a", 3, 1, queue="other"),
        TraceJob("a", 4, 1, gpus=2.0),
    ]
    pairing = bound.pair(jobs)
    assert pairing.gaps == []
    assert pairing.compulsory == 5.0


def test_jobs_without_a_gpu_count_as_one_lane() -> None:
    assert bound.uncapped(bound.pair([job("a", 0, 1, 0.0)]), COLD_S) == COLD_S


def test_unsorted_jobs_are_refused() -> None:
    with pytest.raises(UsageError, match="sorted by start_s"):
        bound.pair([job("a", 1, 1), job("a", 0, 1)])


def test_an_empty_trace_costs_nothing() -> None:
    nothing = bound.pair([])
    assert bound.uncapped(nothing, COLD_S) == 0.0
    assert bound.capped(nothing, 4.0, COLD_S) == 0.0
    assert bound.pooled(nothing, COLD_S, Standby(1.0)) == 0.0


# ------------------------------------------------------------------ without a cap


def test_by_hand() -> None:
    # Gaps of 3 (held), 20 (released), 0 (back to back), and two compulsory starts.
    jobs = [job("a", 0, 2), job("a", 5, 1), job("b", 6, 1), job("a", 26, 1), job("a", 27, 4)]
    pairing = bound.pair(jobs)
    assert bound.uncapped(pairing, COLD_S) == 3 + 10 + 0 + 2 * 10
    # Promotion at 2 and a quarter of the price: min(3, 2.75, 10) + min(20, 7, 10) + 0 + 20.
    assert bound.uncapped(pairing, COLD_S, Standby(2.0, 0.25)) == 2.75 + 7 + 0 + 20


@settings(max_examples=300, deadline=None)
@given(jobs_of((1.0, 2.0)))
def test_no_other_pairing_is_cheaper(jobs: list[TraceJob]) -> None:
    assert bound.uncapped(bound.pair(jobs), COLD_S) == pytest.approx(least(jobs))


@settings(max_examples=200, deadline=None)
@given(jobs_of(most=5, shortest=1), st.integers(0, 12), st.sampled_from((0.0, 0.25, 0.5, 1.0)))
def test_pooled_lanes_against_every_way(jobs: list[TraceJob], promote: int, h2: float) -> None:
    standby = Standby(float(promote), h2)
    cheapest = min(cost_of(jobs, way, standby) for way in pairings(jobs, across=True))
    pooled = bound.pooled(bound.pair(jobs), COLD_S, standby)
    assert pooled == pytest.approx(cheapest)
    # Lanes that stay with their caller are one of the ways.
    assert pooled <= bound.uncapped(bound.pair(jobs), COLD_S, standby) + 1e-6


def test_a_standby_dearer_than_idleness_is_refused() -> None:
    with pytest.raises(UsageError, match="h2"):
        bound.pooled(bound.pair([job("a", 0, 1)]), COLD_S, Standby(1.0, 1.5))


# ------------------------------------------------------------------ with a cap


def test_a_cap_holds_the_gaps_that_save_most() -> None:
    # Three callers leave at 1, 2, 3 and come back at 5, 6, 12; jobs count against the cap too.
    jobs = [job("a", 0, 1), job("b", 1, 1), job("c", 2, 1)]
    jobs += [job("a", 5, 1), job("b", 6, 1), job("c", 12, 1)]
    pairing = bound.pair(jobs)
    # Holding a saves 6, b 6, c 1. Some job runs within each gap.
    assert bound.capped(pairing, 1.0, COLD_S) == pytest.approx(60)
    assert bound.capped(pairing, 2.0, COLD_S) == pytest.approx(60 - 6 - 1)  # c and one other
    assert bound.capped(pairing, 3.0, COLD_S) == pytest.approx(60 - 6 - 6 - 1)


@settings(max_examples=300, deadline=None)
@given(jobs_of(), caps)
def test_equal_sizes_are_solved_exactly(
    jobs: list[TraceJob], cap: list[tuple[float, float]]
) -> None:
    solved = bound.capped(bound.pair(jobs), cap, COLD_S)
    assert solved == pytest.approx(least(jobs, cap))


@settings(max_examples=300, deadline=None)
@given(jobs_of((0.5, 1.0, 2.0)), caps)
def test_unequal_sizes_stay_below(jobs: list[TraceJob], cap: list[tuple[float, float]]) -> None:
    pairing = bound.pair(jobs)
    solved = bound.capped(pairing, cap, COLD_S)
    assert bound.uncapped(pairing, COLD_S) - 1e-6 <= solved <= least(jobs, cap) + 1e-6


@settings(max_examples=100, deadline=None)
@given(jobs_of((1.0, 2.0)))
def test_a_wide_cap_changes_nothing(jobs: list[TraceJob]) -> None:
    pairing = bound.pair(jobs)
    assert bound.capped(pairing, 1e6, COLD_S) == pytest.approx(bound.uncapped(pairing, COLD_S))


def test_sizes_that_fill_the_cap_in_part_only() -> None:
    # A cap of 2.9 holds two workers of one GPU, not 2.9 of them.
    jobs = [job(c, 0, 1) for c in "abc"] + [job(c, 5, 1) for c in "abc"]
    assert bound.capped(bound.pair(jobs), 2.9, COLD_S) == pytest.approx(60 - 12)


def test_busy_beyond_the_cap_holds_nothing_there() -> None:
    jobs = [job("a", 0, 1), *(job(c, 2, 3) for c in "bcd"), job("a", 6, 1)]
    assert bound.capped(bound.pair(jobs), 2.0, COLD_S) == pytest.approx(5 * COLD_S)
    assert bound.capped(bound.pair(jobs), 4.0, COLD_S) == pytest.approx(5 * COLD_S - 5)


def test_a_shapeless_cap_is_refused() -> None:
    pairing = bound.pair([job("a", 0, 1)])
    for wrong in ([], [(1.0, 2.0), (0.0, 1.0)]):
        with pytest.raises(UsageError, match="sorted"):
            bound.capped(pairing, wrong, COLD_S)


def test_thousands_of_jobs_are_solved() -> None:
    chance = random.Random(3)
    jobs = sorted(
        (
            job(f"c{chance.randrange(200)}", chance.uniform(0, 40_000), chance.expovariate(0.05))
            for _ in range(5_000)
        ),
        key=_start,
    )
    pairing = bound.pair(jobs)
    tight, wide = bound.capped(pairing, 4.0, 60.0), bound.capped(pairing, 20.0, 60.0)
    free = bound.uncapped(pairing, 60.0)
    assert free - 1e-6 <= wide < tight <= 5_000 * 60.0
    assert bound.pooled(pairing, 60.0, Standby(1.0)) < free


def test_without_scipy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job("a", 0, 1), job("b", 0, 1), job("a", 3, 1), job("b", 3, 1)]
    pairing = bound.pair(jobs)
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    assert bound.uncapped(pairing, COLD_S) == 24.0
    with pytest.raises(UsageError, match=r"pip install 'firepool-ray\[sim\]'"):
        bound.capped(pairing, 1.0, COLD_S)
