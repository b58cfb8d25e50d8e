"""Tables, JSON and the picture of several policies side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from firepool_ray.core.model import PoolSpec, ProfileSpec, QueueSpec
from firepool_ray.errors import UsageError
from firepool_ray.sim import generators, plots, policies, report
from firepool_ray.sim.costs import Constant, Costs
from firepool_ray.sim.engine import Setup, simulate
from firepool_ray.sim.report import Row

SPEC = PoolSpec(
    (ProfileSpec("gpu", 1.0, 0, max_lanes=100, lane_keep_s=0.0),), (QueueSpec("default"),)
)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    load = generators.parse("agents:callers=6,calls=6,spread_s=100").workload(0)
    made = []
    for name in ("fixed:30", "always", "greedy-dual"):
        spec, objects = policies.choose(SPEC, name)
        result = simulate(Setup(spec, Costs(cold=Constant(20)), policies=objects), load)
        made.append(Row(name, result, 300.0, 400.0))
    return made


def test_cost_and_warm_share_stand_beside_each_other(rows: list[Row]) -> None:
    lines = report.to_text(rows).splitlines()
    head = next(line for line in lines if "of bound" in line)
    assert head.split()[:4] == ["policy", "cost", "of", "bound"]
    assert head.split()[4] == "warm"
    for row in rows:
        shown = [line.split() for line in lines if line.strip().startswith(row.policy)]
        assert len(shown) == 2
        assert shown[0][1] == str(row.result.jobs)
        assert shown[1][1] == f"{row.result.cost_gpu_s:.0f}"
        assert shown[1][2] == f"{row.result.cost_gpu_s / 300:.2f}"
        assert shown[1][4] == f"{100 * row.result.warm_share:.1f}"
    assert "Mean length of a session" in lines[-1]


def test_json_has_the_same_figures(rows: list[Row]) -> None:
    shown = json.loads(json.dumps(report.to_dict(rows), allow_nan=False))
    assert [policy["policy"] for policy in shown["policies"]] == [row.policy for row in rows]
    for policy, row in zip(shown["policies"], rows, strict=True):
        assert policy["cost_over_bound"] == pytest.approx(row.result.cost_gpu_s / 300)
        assert policy["warm_share"] == row.result.warm_share
        assert policy["recorded_bound_gpu_s"] == 400.0
        assert sum(policy["sources"].values()) == policy["jobs"]
        assert set(policy["gpu_s"]) == {"busy", "idle", "starting", "free"}
        assert len(policy["curve"]["gpus"]["busy"]) == len(policy["curve"]["served"]["warm"])
    assert "curve" not in report.to_dict(rows, curve=False)["policies"][0]


def test_shares_are_of_what_always_holds(rows: list[Row]) -> None:
    assert report.always_on_gpu_s(rows) == rows[1].result.held_gpu_s
    others = [rows[0], rows[2]]
    spans = max(row.result.span_s for row in others)
    peaks = max(row.result.peak_gpus for row in others)
    assert report.always_on_gpu_s(others) == peaks * spans


def test_no_bound_is_shown_as_such(rows: list[Row]) -> None:
    row = Row("fixed:30", rows[0].result)
    assert row.ratio is None
    assert " - " in report.to_text([row])
    assert report.to_dict([row])["policies"][0]["cost_over_bound"] is None


def test_policies_that_are_none_are_told() -> None:
    for text in ("fixed", "fixed:x", "sometimes", "lru:-1", "lru:x"):
        with pytest.raises(UsageError):
            policies.choose(SPEC, text)
    with pytest.raises(UsageError, match="adaptive, fixed:SECONDS.*greedy-dual"):
        policies.choose(SPEC, "clever")


def test_the_picture(rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "runs.png"
    plots.draw(rows, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
    with pytest.raises(UsageError, match="cannot be written"):
        plots.draw(rows, tmp_path / "missing" / "runs.png")


def test_a_missing_extra_is_named(
    rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'firepool-ray\[plots\]'"):
        plots.draw(rows, tmp_path / "runs.png")
