"""The import rules of pyproject.toml hold, and import-linter really notices a bad import."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = "Layers: import downward only"
RAY = "Only runtime, client.transport and sandbox import ray"
KUBERNETES = "Only kube imports kubernetes"
PURE = "The core is pure"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [linter, "--no-cache", "--config", "pyproject.toml"],
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=120,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(
        ROOT / "firepool_ray",
        tmp_path / "firepool_ray",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return tmp_path


def test_the_package_keeps_the_rules() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("core/planted.py", "import firepool_ray.config", LAYERS),
        ("core/planted.py", "from firepool_ray.runtime import protocol", LAYERS),
        ("runtime/planted.py", "import firepool_ray.client", LAYERS),
        ("binding/planted.py", "import firepool_ray.observe", LAYERS),
        ("unknown/__init__.py", "", LAYERS),
        ("cli/planted.py", "import ray", RAY),
        ("client/planted.py", "from ray import get", RAY),
        ("observe/planted.py", "def late():\n    import ray.util.state", RAY),
        ("runtime/planted.py", "import kubernetes.client", KUBERNETES),
        ("core/planted.py", "import time", PURE),
        ("core/planted.py", "import numpy as np", PURE),
    ],
)
def test_a_planted_import_is_refused(copy: Path, module: str, line: str, contract: str) -> None:
    planted = copy / "firepool_ray" / module
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(line + "\n")
    result = lint(copy)
    verdicts = [text for text in result.stdout.splitlines() if "BROKEN" in text]
    assert result.returncode == 1, result.stdout + result.stderr
    assert any(verdict.startswith(contract) for verdict in verdicts), result.stdout


def test_the_core_imports_the_standard_library_only() -> None:
    graph = grimp.build_graph("firepool_ray", include_external_packages=True, cache_dir=None)
    core = {"firepool_ray.core", *graph.find_descendants("firepool_ray.core")}
    imported = {name for module in core for name in graph.find_modules_directly_imported_by(module)}
    foreign = {
        name
        for name in imported - core - {"firepool_ray.errors"}
        if name.partition(".")[0] not in sys.stdlib_module_names
    }
    assert foreign == set()
