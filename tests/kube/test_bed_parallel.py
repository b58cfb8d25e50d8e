"""Test modules side by side: in which order, and what the whole of it comes to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kube.bed import parallel
from tests.kube.bed.parallel import Ended


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    (tmp_path / "long").mkdir()
    for name in ("test_b.py", "test_a.py", "long/test_c.py", "helper.py"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("codes", "expected"), [((0, 0, 0), 0), ((0, 5, 0), 0), ((5, 5, 5), 5), ((0, 1, 124), 124)]
)
def test_every_module_runs_and_one_that_fails_fails_all(
    modules: Path, codes: tuple[int, ...], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    left = list(codes)

    def run(module: str, arguments: list[str]) -> Ended:
        assert arguments == ["-q"]
        ran.append(Path(module).name)
        return Ended(module, left.pop(0), 1.0)

    fake: Callable[..., Ended] = run
    monkeypatch.setattr(parallel, "_run", fake)
    assert parallel.run_modules([str(modules)], ["-q"]) == expected
    assert ran == ["test_c.py", "test_a.py", "test_b.py"]


def test_a_module_that_fails_is_run_again_and_both_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = {"a": [1, 0], "b": [0], "c": [1, 1, 0]}

    def run(module: str, arguments: list[str]) -> Ended:
        return Ended(module, codes[module].pop(0), 2.0)

    monkeypatch.setattr(parallel, "_run", run)
    assert parallel.run_modules(["a", "b"], [], tries=2) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "a: FAILED with status 1 in 2 s",
        "a: passed in 2 s",
        "b: passed in 2 s",
    ]
    assert parallel.run_modules(["c"], [], tries=2) == 1
