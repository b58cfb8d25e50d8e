"""Invented loads: seeded, as large as asked, and what their text form may say."""

from __future__ import annotations

from itertools import groupby

import pytest

from firepool_ray.errors import UnknownName, UsageError
from firepool_ray.sim.generators import Agents, Bursts, Poisson, Range, RlLoops, parse
from firepool_ray.sim.workload import unrolled


@pytest.mark.parametrize("text", ["agents", "rl", "poisson", "bursts"])
def test_loads_follow_from_their_seed(text: str) -> None:
    generator = parse(text)
    load = generator.workload(1)
    jobs = list(unrolled(load).jobs())
    assert len(jobs) == load.total
    assert jobs == list(unrolled(load).jobs())
    assert jobs == list(unrolled(generator.workload(1)).jobs())
    assert jobs != list(unrolled(generator.workload(2)).jobs())
    assert [job.start_s for job in jobs] == sorted(job.start_s for job in jobs)
    assert all(job.duration_s >= 0 for job in jobs)


def test_an_rl_loop_is_bursts_and_pauses() -> None:
    loops = RlLoops(loops=1, n=6, bursts=5, burst_s=Range(20, 80), pause_s=Range(30, 180))
    jobs = list(unrolled(loops.workload(3)).jobs())
    bursts = [list(group) for _, group in groupby(jobs, key=lambda job: job.start_s)]
    assert [len(burst) for burst in bursts] == [6] * 5
    lengths = [job.duration_s for job in jobs]
    assert min(lengths) >= 18 and max(lengths) <= 88
    assert max(lengths) <= min(lengths) * 1.1 / 0.9
    pauses = [
        after[0].start_s - max(job.start_s + job.duration_s for job in before)
        for before, after in zip(bursts, bursts[1:], strict=False)
    ]
    assert min(pauses) >= 27 and max(pauses) <= min(pauses) * 1.1 / 0.9


def test_turns_are_short_gaps_inside_a_burst() -> None:
    loops = RlLoops(loops=1, n=3, bursts=2, turns=4, turn_pause_s=1.0, jitter=0.0)
    jobs = list(unrolled(loops.workload(0)).jobs())
    starts = sorted({job.start_s for job in jobs})
    gaps = [b - a - jobs[0].duration_s for a, b in zip(starts, starts[1:], strict=False)]
    assert len(jobs) == 3 * 2 * 4
    assert [round(gap, 6) == 1.0 for gap in gaps] == [True] * 3 + [False] + [True] * 3


def test_agents_take_one_call_at_a_time() -> None:
    jobs = list(unrolled(Agents(callers=5, calls=10).workload(0)).jobs())
    for caller in {job.caller for job in jobs}:
        own = [job for job in jobs if job.caller == caller]
        assert len(own) == 10
        for before, after in zip(own, own[1:], strict=False):
            assert after.start_s > before.start_s + before.duration_s


def test_poisson_has_the_rate() -> None:
    jobs = list(Poisson(callers=10, jobs=5000, rate=0.2).workload(0).jobs())
    assert len(jobs) / jobs[-1].start_s == pytest.approx(2.0, rel=0.1)


def test_bursts_come_together() -> None:
    jobs = list(Bursts(callers=4, bursts=3, size=5).workload(0).jobs())
    groups = [len(list(group)) for _, group in groupby(jobs, key=lambda j: (j.caller, j.start_s))]
    assert groups == [5] * 12


def test_text_form() -> None:
    assert parse("rl") == RlLoops()
    assert parse("rl:loops=2,n=4,burst_s=10-20,pause_s=60,jitter=0.2") == RlLoops(
        loops=2, n=4, burst_s=Range(10, 20), pause_s=Range(60, 60), jitter=0.2
    )
    half = parse("agents:gpus=0.5,queue=tools,name=swe")
    assert isinstance(half, Agents)
    assert (half.profile, half.queue) == ("gpu0.5", "tools")
    assert {job.caller for job in unrolled(half.workload(0)).jobs()} == {
        f"swe-{i}" for i in range(50)
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rll", "Did you mean 'rl'"),
        ("rl:loop=2", "Did you mean 'loops'"),
        ("rl:loops=two", "loops=two: this takes a number > 0, such as 4"),
        ("rl:burst_s=9-3", "LOW-HIGH"),
        ("rl:loops", "write loops=VALUE"),
    ],
)
def test_mistakes_list_what_is_valid(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(text)
    assert issubclass(UnknownName, UsageError)
