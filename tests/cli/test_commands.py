"""The commands, with a cluster that is only pretended."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from firepool_ray.cli import commands
from firepool_ray.cli.commands import main
from firepool_ray.config import PoolConfig
from firepool_ray.errors import PoolUnavailable
from firepool_ray.runtime import pool, session

POOL_FILE = "profiles: {gpu: {gpus: 1, min_lanes: 2}}\n"


class Pretended:
    """Stands for the cluster: what runs there, and what the commands asked for."""

    def __init__(self) -> None:
        self.running: PoolConfig | None = None
        self.addresses: list[str | None] = []
        self.described: list[dict[str, Any]] = []
        self.explained: dict[str, Any] = {}

    @contextlib.contextmanager
    def cluster(self, address: str | None = None) -> Iterator[None]:
        self.addresses.append(address)
        yield

    def find_pool(self) -> object | None:
        return self.running

    def start_pool(self, config: PoolConfig, *, embedded: bool) -> object:
        assert not embedded
        self.running = config.with_capacity({"gpu": 8})
        return self.running

    def stop_pool(self, handle: object) -> None:
        assert handle is self.running
        self.running = None

    def settings(self) -> dict[str, Any]:
        assert self.running is not None
        return self.running.model_dump(mode="json")

    def describe(self) -> dict[str, Any]:
        return self.described.pop(0) if len(self.described) > 1 else self.described[0]

    def explain(self, what: str) -> dict[str, Any]:
        return {**self.explained, "what": what}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    pretended = Pretended()
    for name in ("cluster", "settings", "describe", "explain"):
        monkeypatch.setattr(session, name, getattr(pretended, name))
    for name in ("find_pool", "start_pool", "stop_pool"):
        monkeypatch.setattr(pool, name, getattr(pretended, name))
    return pretended


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def lanes(*states: str) -> dict[str, Any]:
    rows = [{"state": "ready", "workers": [{"state": state}]} for state in states]
    return {"lanes": rows, "profiles": [{"profile": "gpu", "breaker": "closed"}]}


@pytest.fixture
def pool_file(tmp_path: Path) -> str:
    path = tmp_path / "pool.yaml"
    path.write_text(POOL_FILE)
    return str(path)


def test_up_starts_the_pool_and_waits_for_its_lanes(there: Pretended, pool_file: str) -> None:
    there.described = [lanes(), lanes("standby", "starting"), lanes("standby", "idle")]
    result = run("up", "-f", pool_file, "--address", "10.0.0.1:6379")
    assert result.exit_code == 0, result.output
    assert there.running is not None and there.addresses == ["10.0.0.1:6379"]
    assert "Started the pool: profiles gpu." in result.output
    assert "2 of 2 lanes are ready." in result.output


def test_up_again_is_harmless(there: Pretended, pool_file: str) -> None:
    assert run("up", "--no-wait", "-f", pool_file).exit_code == 0
    result = run("up", "--no-wait", "-f", pool_file)
    assert result.exit_code == 0 and "already running" in result.output


def test_up_with_other_settings_is_refused(there: Pretended, pool_file: str) -> None:
    run("up", "--no-wait", "-f", pool_file)
    before = there.running
    Path(pool_file).write_text("profiles: {gpu: {gpus: 1}}\n")
    result = run("up", "-f", pool_file)
    assert result.exit_code == 2 and "firepool down" in result.output
    assert there.running is before


def test_up_tells_a_bad_file_before_it_touches_a_cluster(there: Pretended, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text("profiles: {gpu: {gpuz: 1}}\n")
    result = run("up", "-f", str(path))
    assert result.exit_code == 2 and there.addresses == []
    assert "profiles.gpu.gpuz: unknown key" in result.output


def test_up_stops_waiting_when_workers_do_not_start(there: Pretended, pool_file: str) -> None:
    broken = {"profile": "gpu", "breaker": "open", "last_failure": "no module named torch"}
    there.described = [{"lanes": [], "profiles": [broken]}]
    result = run("up", "-f", pool_file)
    assert result.exit_code == 1 and "no module named torch" in result.output


def test_down_ends_what_runs_and_says_when_nothing_does(there: Pretended, pool_file: str) -> None:
    run("up", "--no-wait", "-f", pool_file)
    assert "has ended" in run("down").output and there.running is None
    result = run("down")
    assert result.exit_code == 0 and "No pool is running" in result.output


def test_status_as_json_is_what_the_controller_says(there: Pretended) -> None:
    there.described = [{"epoch": 1}]
    assert json.loads(run("status", "--json").output) == {"epoch": 1}


def test_what_ray_prints_by_itself_is_not_in_the_answer(
    there: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe() -> dict[str, Any]:
        print("a raylet died")
        return {"epoch": 1}

    monkeypatch.setattr(session, "describe", describe)
    result = run("status", "--json")
    assert json.loads(result.stdout) == {"epoch": 1}
    assert "a raylet died" in result.stderr


def test_explain_exits_with_1_for_something_unknown(there: Pretended) -> None:
    there.explained = {"kind": "unknown", "message": "never heard of it", "candidates": ["a/b"]}
    result = run("explain", "x")
    assert result.exit_code == 1 and "never heard of it" in result.output
    there.explained = {"kind": "job", "message": "It ran."}
    result = run("explain", "x", "--json")
    assert result.exit_code == 0 and json.loads(result.output)["what"] == "x"


def test_an_unreachable_pool_is_one_line(there: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
    def describe() -> dict[str, Any]:
        raise PoolUnavailable("no pool runs on this cluster")

    monkeypatch.setattr(session, "describe", describe)
    result = run("status")
    assert result.exit_code == 1
    assert result.output == "Error: no pool runs on this cluster\n"


def test_demo_runs_the_example_and_passes_its_status_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; sys.exit(int(sys.argv[1]))")
    monkeypatch.setattr(commands, "DEMOS", (tmp_path / "none.py", script))
    assert run("demo", "7").exit_code == 7


def test_bench_refuses_an_unknown_figure() -> None:
    result = run("bench", "--only", "warm_p50")
    assert result.exit_code == 2
    assert "unknown figure 'warm_p50'. Did you mean 'warm_p50_ratio'?" in result.output
