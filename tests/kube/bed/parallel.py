"""Runs test modules side by side, each in private namespaces of its own.

Most of their time is spent waiting, so two at a time need little more than half of it. What a
module prints comes when it has ended.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

#: A module takes two minutes or three; one that takes so long hangs.
MODULE_S = 900.0
_NONE_CHOSEN = 5
_WORDS = {0: "passed", _NONE_CHOSEN: "no test chosen"}
#: Those that take longest begin first, so that nobody is waited for at the end.
_LONGEST = (
    "test_disruption.py",
    "test_shrinking.py",
    "test_growth.py",
    "test_manifests_apply.py",
    "test_trainers.py",
)


class Ended(NamedTuple):
    module: str
    code: int
    seconds: float


def run_modules(paths: Sequence[str], arguments: Sequence[str], jobs: int) -> int:
    """0 if all succeeded. ``paths``: test files or folders; ``arguments``: of pytest."""
    modules = sorted(_modules(paths), key=_turn)
    with ThreadPoolExecutor(jobs) as executor:
        ended = list(executor.map(lambda module: _run(module, arguments), modules))
    for row in ended:
        said = _WORDS.get(row.code, f"FAILED with status {row.code}")
        print(f"{row.module}: {said} in {row.seconds:.0f} s")
    codes = {row.code for row in ended}
    if codes <= {_NONE_CHOSEN}:
        return _NONE_CHOSEN
    return max(codes - {_NONE_CHOSEN})


def _modules(paths: Sequence[str]) -> list[str]:
    found: list[str] = []
    for path in paths:
        folder = Path(path)
        if folder.is_dir():
            found += map(str, sorted(folder.glob("test_*.py")))
        else:
            found.append(path)
    return found


def _turn(module: str) -> tuple[int, str]:
    name = Path(module).name
    return (_LONGEST.index(name) if name in _LONGEST else len(_LONGEST), name)


def _run(module: str, arguments: Sequence[str]) -> Ended:
    began = time.monotonic()
    inside = [sys.executable, "-m", "pytest", module, *arguments]
    command = [sys.executable, "-m", "tests.kube.bed", "enter", "--", *inside]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MODULE_S,
            check=False,
        )
        code, said = done.returncode, done.stdout
    except subprocess.TimeoutExpired as expired:
        code = 124
        said = f"{_text(expired.stdout)}\nstopped after {MODULE_S:g} s"
    took_s = time.monotonic() - began
    print(f"==> {module} ({took_s:.0f} s)\n{said.rstrip()}", flush=True)
    return Ended(module, code, took_s)


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
