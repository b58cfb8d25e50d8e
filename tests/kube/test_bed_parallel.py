"""Test modules side by side: in which order, and what the whole of it comes to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kube.bed import parallel
from tests.kube.bed.parallel import Ended


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    for name in ("test_a.py", "test_growth.py", "test_disruption.py", "helper.py"):
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
    assert parallel.run_modules([str(modules)], ["-q"], jobs=1) == expected
    assert ran == ["test_disruption.py", "test_growth.py", "test_a.py"]


def test_the_longest_are_modules_that_exist() -> None:
    folder = Path(__file__).parent / "cluster"
    assert [name for name in parallel._LONGEST if not (folder / name).exists()] == []
