"""Closed loops: recorded sessions by cause, steps, and what they look like as open-loop jobs."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from firepool_ray.sim.traces import TraceJob
from firepool_ray.sim.workload import (
    LoopSession,
    RecordedSession,
    Session,
    Step,
    Workload,
    closed_loop,
    open_loop,
    together,
    unrolled,
)


def starts(calls: list) -> list[tuple[str, float]]:  # type: ignore[type-arg]
    return [(call.job.caller, call.job.start_s) for call in calls]


def test_a_recorded_call_follows_on_the_end_of_what_had_ended() -> None:
    rows = [TraceJob("a", 0, 10), TraceJob("a", 12, 3), TraceJob("a", 20, 1)]
    session = RecordedSession(rows)
    assert starts(session.begin()) == [("a", 0.0)]
    # everything comes 5 seconds late, and the pauses stay
    assert starts(session.ended(0, 15.0)) == [("a", 17.0)]
    assert starts(session.ended(1, 20.0)) == [("a", 25.0)]
    assert not session.done()
    assert session.ended(2, 26.0) == []
    assert session.done()


def test_overlapping_calls_stay_concurrent() -> None:
    rows = [TraceJob("a", 0, 10), TraceJob("a", 4, 10), TraceJob("a", 16, 1)]
    session = RecordedSession(rows)
    # the second began while the first ran: it follows on the session's begin
    assert starts(session.begin()) == [("a", 0.0), ("a", 4.0)]
    assert session.ended(1, 30.0) == []
    # the third waits for both, and its pause begins with the later one
    assert starts(session.ended(0, 25.0)) == [("a", 32.0)]


def test_jobs_that_take_no_time_do_not_wait_for_themselves() -> None:
    rows = [TraceJob("a", 1, 0), TraceJob("a", 1, 0), TraceJob("a", 1, 2), TraceJob("a", 3, 0)]
    session = RecordedSession(rows)
    found = starts(session.begin())
    for tag in range(3):
        found += starts(session.ended(tag, 1.0 if tag < 2 else 3.0))
    assert found == [("a", 1.0), ("a", 1.0), ("a", 1.0), ("a", 3.0)]
    assert session.ended(3, 3.0) == []
    assert session.done()


jobs_of_one = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=20
).map(lambda rows: sorted(TraceJob("a", float(s), float(d)) for s, d in rows))


@settings(deadline=None)
@given(jobs_of_one)
def test_without_delays_a_recorded_session_is_the_trace(rows: list[TraceJob]) -> None:
    load = closed_loop(rows)
    assert sorted(unrolled(load).jobs()) == sorted(rows)


@settings(deadline=None)
@given(jobs_of_one, st.integers(0, 99))
def test_delays_never_reorder_causes(rows: list[TraceJob], seed: int) -> None:
    """Each call begins after the ends of all that had ended before it in the trace."""
    chance = random.Random(seed)
    session = RecordedSession(rows)
    waiting = session.begin()
    ends: dict[int, float] = {}
    begun: dict[int, float] = {}
    while waiting:
        waiting.sort(key=lambda call: call.job.start_s + call.job.duration_s)
        call = waiting.pop(0)
        begun[call.tag] = call.job.start_s
        ends[call.tag] = call.job.start_s + call.job.duration_s + chance.uniform(0, 5)
        waiting += session.ended(call.tag, ends[call.tag])
    assert session.done()
    assert len(ends) == len(rows)
    for later, row in enumerate(rows):
        for earlier, other in enumerate(rows[:later]):
            if other.start_s + other.duration_s <= row.start_s:
                assert begun[later] >= ends[earlier] - 1e-9


def test_steps_wait_for_the_last_of_a_burst() -> None:
    session = LoopSession("rl", 5.0, [Step(0.0, (2.0, 3.0)), Step(10.0, (1.0,))])
    assert [(c.tag, c.job.start_s, c.job.duration_s) for c in session.begin()] == [
        (0, 5.0, 2.0),
        (1, 5.0, 3.0),
    ]
    assert session.ended(1, 8.0) == []
    assert [(c.tag, c.job.start_s) for c in session.ended(0, 9.0)] == [(2, 19.0)]
    assert session.ended(2, 20.0) == []
    assert session.done()


def test_loads_are_joined_in_the_order_of_time() -> None:
    one = open_loop([TraceJob("a", 3, 1), TraceJob("a", 1, 1)])
    two = open_loop([TraceJob("b", 2, 1)])
    sessions = Workload(sessions=lambda: iter([_once("c", 0.0)]))
    load = together(one, two, sessions)
    assert [job.start_s for job in load.jobs()] == [1, 2, 3]
    assert [job.caller for job in unrolled(load).jobs()] == ["c", "a", "b", "a"]
    assert load.total is None
    assert together(one, two).total == 3
    assert [job.start_s for job in load.jobs()] == [1, 2, 3], "it can be run again"


def _once(caller: str, begin_s: float) -> Session:
    return LoopSession(caller, begin_s, [Step(0.0, (1.0,))])
