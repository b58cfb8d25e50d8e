"""Two tools of a coding agent, as ordinary functions: they run on a pool worker.

They run the code they are given in the worker itself; where that code is not trusted, give the
pool workers a sandbox.
"""

from __future__ import annotations

import contextlib
import io
import traceback
from typing import Any, NamedTuple


class Verdict(NamedTuple):
    passed: int
    failed: int
    report: str


def evaluate_snippet(source: str) -> str:
    """Run a snippet; return what it printed, or its traceback."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(source, "<snippet>", "exec"), {"__name__": "snippet"})
        except Exception:
            return printed.getvalue() + traceback.format_exc(limit=-1)
    return printed.getvalue()


def verify(solution: str, cases: list[tuple[str, Any]]) -> Verdict:
    """Run a solution against unit tests: pairs of an expression and its expected value."""
    names: dict[str, Any] = {"__name__": "solution"}
    exec(compile(solution, "<solution>", "exec"), names)
    complaints = []
    for expression, expected in cases:
        try:
            value = eval(expression, names)
        except Exception as error:
            complaints.append(f"{expression} raised {type(error).__name__}: {error}")
            continue
        if value != expected:
            complaints.append(f"{expression} is {value!r}, expected {expected!r}")
    return Verdict(len(cases) - len(complaints), len(complaints), "\n".join(complaints))
