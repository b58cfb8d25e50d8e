"""The machinery of ``firepool bench``; of the figures only those that need no Ray are measured."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest

from firepool_ray.cli.bench import core, profiling, report, suite
from firepool_ray.cli.bench.corebed import CoreBed
from firepool_ray.cli.bench.figures import (
    GROUPS,
    TARGETS,
    Figure,
    Measured,
    Target,
    judge,
    not_measured,
)


def test_targets_are_ceilings_or_floors() -> None:
    ceiling, floor = Target("a", "x", 2.0), Target("b", "x", 2.0, at_least=True)
    assert ceiling.met_by(2.0) and not ceiling.met_by(2.1) and str(ceiling) == "<= 2"
    assert floor.met_by(2.0) and not floor.met_by(1.9) and str(floor) == ">= 2"


def test_every_figure_has_one_name_and_a_group() -> None:
    names = [target.name for targets in GROUPS.values() for target in targets]
    assert len(names) == len(set(names)) == len(TARGETS)


def test_json_has_the_promised_form() -> None:
    figures = [
        judge(TARGETS["burst_ratio"], Measured("burst_ratio", 1.2, "d")),
        not_measured(TARGETS["recovery_s"], "why"),
    ]
    printed = json.loads(report.as_json(figures))
    assert set(printed) == {"machine", "figures"}
    assert printed["figures"][0] == {
        "name": "burst_ratio",
        "value": 1.2,
        "unit": "x",
        "target": "<= 1.3",
        "ok": True,
        "detail": "d",
    }
    assert printed["figures"][1]["value"] is None and not printed["figures"][1]["ok"]


def test_text_tells_missed_and_failed_apart() -> None:
    missed = judge(TARGETS["burst_ratio"], Measured("burst_ratio", 2.0, "slow"))
    page = report.as_text([missed, not_measured(TARGETS["recovery_s"], "why")])
    assert "MISSED" in page and "FAILED" in page and "not measured: why" in page


def _child(monkeypatch: pytest.MonkeyPatch, code: str) -> list[Figure]:
    real = subprocess.run

    def run(command: list[str], **options: object) -> object:
        return real([sys.executable, "-c", code], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(suite.subprocess, "run", run)
    return suite.measure(["core_events_per_s", "core_growth_ratio"])


def test_a_group_that_crashes_keeps_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    code = 'print("noise"); print(\'["core_events_per_s", 4e4, "d"]\', flush=True); 1 / 0'
    good, lost = _child(monkeypatch, code)
    assert (good.value, good.ok) == (4e4, True)
    assert lost.value is None and "ZeroDivisionError" in lost.detail


def test_a_group_that_hangs_keeps_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "GROUP_LIMIT_S", 2.0)
    code = 'import time; print(\'["core_events_per_s", 4e4, "d"]\', flush=True); time.sleep(60)'
    good, lost = _child(monkeypatch, code)
    assert good.ok and "ran past 2 s" in lost.detail


def test_the_core_bed_repeats_and_uses_its_lanes() -> None:
    beds = [CoreBed(lanes=40) for _ in range(2)]
    counts = [bed.run(500)[0] for bed in beds]
    assert counts[0] == counts[1] >= 500 and beds[0].mix() == beds[1].mix()
    assert "ClientSynced" in beds[0].mix()


def test_a_missed_core_figure_comes_with_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    out_of_reach = Target("core_events_per_s", "events/s", 1e12, at_least=True)
    monkeypatch.setitem(TARGETS, "core_events_per_s", out_of_reach)
    monkeypatch.setattr(core, "EVENTS_PER_ROUND", 200)
    (measured,) = core.measure(frozenset({"core_events_per_s"}))
    assert measured.value > 0 and "own time: " in measured.detail


def test_percentiles_are_values_that_occurred() -> None:
    assert profiling.percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert profiling.percentile(range(100), 99) == 99
    assert profiling.phases([{"a": 0.001, "b": 0.002}]) == "median ms by phase: a 1.000, b 2.000"


def test_cpu_is_put_down_to_what_runs_and_not_to_what_waits() -> None:
    def spin() -> None:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            sum(range(1000))

    waiter = threading.Thread(target=time.sleep, args=(0.3,))
    waiter.start()
    found = profiling.cpu_by_function(spin)
    waiter.join()
    first, *others = found.partition(": ")[2].split(", ")
    assert ":spin " in first and len(others) < 3, found
