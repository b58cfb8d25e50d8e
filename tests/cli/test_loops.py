"""The table of ``firepool bench --loops``, from made-up outcomes."""

from __future__ import annotations

import json

from firepool_ray.cli.bench import loops, loops_report
from firepool_ray.cli.bench.loops import Outcome, Row


def outcome(name: str, loop_s: float, held: float, idle: float = 1.0, warm: float = 0.5) -> Outcome:
    return Outcome(name, loop_s, 0.01, 2.0, held, idle, warm)


ROWS = [
    Row(outcome("adaptive", 60.0, 100.0, 20.0), outcome("adaptive", 57.0, 90.0, 25.0)),
    Row(outcome("always", 50.0, 300.0), outcome("always", 49.0, 310.0)),
    Row(outcome("never", 90.0, 80.0), outcome("never", 88.0, 95.0)),
    Row(outcome(loops.FRESH, 95.0, 85.0), None),
]


def test_the_simulators_error_is_told_relative_to_the_live_run() -> None:
    error = loops_report.errors(ROWS[0])
    assert error == {
        "loop_s": 57 / 60 - 1,
        "held_gpu_s": 90 / 100 - 1,
        "idle_gpu_s": 5 / 100,
        "warm": 0.0,
    }
    assert loops_report.errors(ROWS[3]) == {}


def test_orders_are_compared_and_a_difference_is_said() -> None:
    orders = loops_report.orders(ROWS)
    assert orders["loop_s"] == (["always", "adaptive", "never"], ["always", "adaptive", "never"])
    assert orders["held_gpu_s"] == (
        ["never", "adaptive", "always"],
        ["adaptive", "never", "always"],
    )
    page = loops_report.as_text(ROWS)
    assert page.count("DIFFERENT") == 1 and "fresh actor per job" in page
    printed = json.loads(loops_report.as_json(ROWS))
    assert [row["simulated"] is None for row in printed["rows"]] == [False, False, False, True]
    assert printed["orders"]["loop_s"]["same"] and not printed["orders"]["held_gpu_s"]["same"]


def test_the_loops_are_the_same_each_time_and_few_enough_for_some_minutes() -> None:
    def played() -> list[tuple[str, float, float]]:
        found = []
        for session in loops.workload().sessions():
            calls = session.begin()
            while calls:
                found += [(c.job.caller, c.job.start_s, c.job.duration_s) for c in calls]
                ends = [(c.tag, c.job.start_s + c.job.duration_s) for c in calls]
                calls = [new for tag, end in ends for new in session.ended(tag, end)]
        return found

    jobs = played()
    assert jobs == played() and len(jobs) == loops.workload().total
    assert max(start + seconds for _, start, seconds in jobs) < 100


def test_the_simulator_predicts_from_the_costs_that_were_measured() -> None:
    measured = {"cold_s": 2.0, "grow_s": 0.1, "promote_s": 0.01, "retire_s": 0.2, "warm_s": 0.002}
    always, never = (loops.predict(policy, measured) for policy in ("always", "never"))
    assert always.loop_s < never.loop_s and always.held_gpu_s > never.held_gpu_s
    assert always.warm > 0.9 and never.warm < 0.1
