"""``firepool simulate``: from options to tables, and what it says to wrong ones."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from firepool_ray.cli.commands import main


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments], catch_exceptions=False)


def figures(*arguments: str) -> list[dict[str, Any]]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    policies: list[dict[str, Any]] = json.loads(result.stdout)["policies"]
    return policies


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Eight sessions that all begin at 0, with two kinds of tools."""
    chance = random.Random(1)
    rows = []
    for caller in range(8):
        at = 0.0
        for _ in range(12):
            duration_s = chance.expovariate(0.3)
            tool = chance.choice(("Bash", "Bash", "Read"))
            rows.append(f"agent-{caller},{at:.3f},{duration_s:.3f},{tool}")
            at += duration_s + chance.expovariate(0.1)
    path = tmp_path / "calls.csv"
    path.write_text("caller,start_s,duration_s,tool\n" + "\n".join(rows) + "\n")
    return path


def test_policies_side_by_side(trace: Path) -> None:
    result = call(
        str(trace), "--spread", "300", "--compare", "fixed:30,adaptive,always,never", "--cold", "10"
    )
    assert result.exit_code == 0
    for policy in ("fixed:30", "adaptive", "always", "never"):
        assert sum(line.strip().startswith(policy) for line in result.stdout.splitlines()) == 2
    assert result.stderr == ""


def test_everything_as_json(trace: Path) -> None:
    rows = figures(
        str(trace), "--spread", "300", "--where", "tool=Bash", "--compare", "always,never",
        "--standbys", "0", "--cold", "lognormal:8,0.5",
    )  # fmt: skip
    always, never = rows
    assert always["jobs"] == never["jobs"] < 96
    assert always["warm_share"] > never["warm_share"]
    assert always["share_of_always_on"] == 1.0
    assert always["cost_over_bound"] >= 1.0 - 1e-9
    assert never["cost_over_bound"] >= 1.0 - 1e-9
    assert always["failed"] == {}


def test_a_closed_loop_is_shorter_where_starts_are(trace: Path) -> None:
    always, never = figures(
        str(trace), "--spread", "60", "--closed-loop", "--compare", "always,never", "--cold", "9",
        "--no-bound",
    )  # fmt: skip
    assert always["sessions"] == never["sessions"] == 8
    assert always["loop_s"] < never["loop_s"]
    assert always["cost_over_bound"] is None


def test_generated_load_and_caps() -> None:
    (row,) = figures(
        "--generate", "rl:loops=2,n=4,bursts=3", "--generate", "agents:callers=4,calls=5",
        "--policy", "fixed:60", "--standbys", "0", "--cap", "6", "--cold", "5",
    )  # fmt: skip
    assert row["jobs"] == 2 * 4 * 3 + 4 * 5
    assert row["peak_gpus"] <= 6
    assert row["max_gpus"] == 6
    assert row["always_on_gpu_s"] == pytest.approx(6 * row["span_s"])
    assert row["cost_over_bound"] >= 1.0 - 1e-6


def test_open_loop_of_a_loop() -> None:
    closed, opened = (
        figures("--generate", "agents:callers=3,calls=4", "--no-bound", way)[0]
        for way in ("--closed-loop", "--open-loop")
    )
    assert (closed["sessions"], opened["sessions"]) == (3, 0)
    assert closed["jobs"] == opened["jobs"] == 12


def test_several_lanes_and_gpus(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text(
        "caller,start_s,duration_s,gpus,queue\na,0,5,2,x\nb,0,5,2,x\nc,1,5,0.5,y\na,30,5,2,x\n"
    )
    (row,) = figures(str(path), "--lanes", "1", "--cold", "2", "--policy", "fixed:10")
    assert row["jobs"] == 4
    assert row["peak_gpus"] == 2.5
    assert set(row["longest_wait_s"]) == {"x", "y"}


def test_a_pool_file(tmp_path: Path, trace: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text("profiles: {gpu: {gpus: 1, max_lanes: 3, keep_alive: 'fixed:20'}}\n")
    (row,) = figures(str(trace), "--spread", "300", "-f", str(path), "--cold", "3")
    assert row["policy"] == "pool file"
    assert row["peak_gpus"] <= 3
    (other,) = figures(str(trace), "--spread", "300", "-f", str(path), "--policy", "never")
    assert other["warm_share"] < row["warm_share"]


def test_the_seed_moves_sessions_and_costs(trace: Path) -> None:
    def of(seed: str) -> dict[str, Any]:
        (row,) = figures(
            str(trace), "--spread", "300", "--seed", seed, "--cold", "uniform:5,20", "--no-bound"
        )
        del row["wall_s"]
        return row

    assert of("1") == of("1")
    assert of("1") != of("2")


def test_a_picture(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs.png"
    result = call(str(trace), "--spread", "300", "--plot", str(path), "--compare", "always,never")
    assert result.exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_scipy_there_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = call("--generate", "agents:callers=3,calls=4", "--json")
    assert result.exit_code == 0
    assert "pip install 'firepool-ray[sim]'" in result.stderr
    assert json.loads(result.stdout)["policies"][0]["cost_over_bound"] is None


def test_a_closed_loop_needs_no_order_in_its_file(trace: Path) -> None:
    (row,) = figures(str(trace), "--closed-loop", "--cold", "9", "--policy", "fixed:30")
    assert (row["jobs"], row["sessions"]) == (96, 8)


def test_a_bar_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    class Bar:
        pos = 0

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, steps: int) -> None:
            self.pos += steps
            drawn.append(self.pos)

    monkeypatch.setattr("click.progressbar", lambda **_: Bar())
    load = ("--generate", "poisson:jobs=1300", "--policy", "fixed:30", "--no-bound")
    assert call(*load).exit_code == 0
    assert drawn == []
    monkeypatch.setattr("firepool_ray.cli.simulate._on_terminal", lambda: True)
    assert call(*load).exit_code == 0
    assert drawn == [500, 1000, 1300]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a trace (CSV), or give --generate"),
        (["missing.csv"], "cannot read the trace"),
        (["TRACE"], "Sort the file by start_s; or"),
        (["TRACE", "--spread", "-1"], "give seconds >= 0"),
        (["TRACE", "--spread", "9", "--where", "tool"], "write COLUMN=VALUE"),
        (["TRACE", "--spread", "9", "--where", "tol=Bash"], "the columns are"),
        (["TRACE", "--spread", "9", "--where", "tool=Vim"], "there is no job to simulate"),
        (["TRACE", "--spread", "9", "--cold", "soon"], "is not a time and no file"),
        (["TRACE", "--spread", "9", "--policy", "clever"], "use adaptive, fixed:SECONDS"),
        (["TRACE", "--spread", "9", "--compare", ","], "takes policies with commas"),
        (["TRACE", "--spread", "9", "--compare", "never", "--policy", "never"], "give one of them"),
        (["--generate", "rll"], "Did you mean 'rl'"),
        (["--generate", "rl", "--where", "a=b"], "about a trace"),
        (["--generate", "rl:gpus=4", "--cap", "2"], "never fits; raise the cap"),
        (["--generate", "rl", "--only", "x"], "give --figures FOLDER with it"),
        (["--figures", "nowhere"], "no such folder"),
        (["--figures", "-", "--only", "speed"], "unknown figure 'speed'"),
    ],
)
def test_mistakes_are_one_message(trace: Path, arguments: list[str], message: str) -> None:
    given = [str(trace) if argument == "TRACE" else argument for argument in arguments]
    result = call(*given)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_a_pool_file_excludes_what_it_says_itself(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text("profiles: {gpu: {gpus: 1}}\n")
    result = call(str(trace), "--spread", "9", "-f", str(path), "--cap", "3")
    assert result.exit_code == 2
    assert "--cap: the pool file says that" in result.stderr


def test_a_profile_that_the_pool_file_lacks(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text("profiles: {cpu: {}}\n")
    result = call(str(trace), "--spread", "9", "-f", str(path))
    assert result.exit_code == 2
    assert "wants profile 'gpu', which the pool does not have: it has cpu" in result.stderr
