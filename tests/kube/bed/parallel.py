"""Runs test modules one after the other, or side by side, each in private namespaces of its own.

What a module prints comes when it has ended. On two cores two at a time disturb each other more
than they gain.
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


class Ended(NamedTuple):
    module: str
    code: int
    seconds: float


def run_modules(
    paths: Sequence[str], arguments: Sequence[str], *, jobs: int = 1, tries: int = 1
) -> int:
    """0 if all succeeded. ``paths``: test files or folders; ``arguments``: of pytest.

    ``tries``: so often a module is run until it succeeds; every run is told.
    """
    modules = _modules(paths)
    with ThreadPoolExecutor(jobs) as executor:
        runs = list(executor.map(lambda module: _runs(module, arguments, tries), modules))
    for row in (row for each in runs for row in each):
        said = _WORDS.get(row.code, f"FAILED with status {row.code}")
        print(f"{row.module}: {said} in {row.seconds:.0f} s")
    codes = {each[-1].code for each in runs}
    if codes <= {_NONE_CHOSEN}:
        return _NONE_CHOSEN
    return max(codes - {_NONE_CHOSEN})


def _runs(module: str, arguments: Sequence[str], tries: int) -> list[Ended]:
    found: list[Ended] = []
    while len(found) < tries and (not found or found[-1].code not in _WORDS):
        found.append(_run(module, arguments))
    return found


def _modules(paths: Sequence[str]) -> list[str]:
    found: list[str] = []
    for path in paths:
        folder = Path(path)
        if folder.is_dir():
            found += map(str, sorted(folder.rglob("test_*.py")))
        else:
            found.append(path)
    return found


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
