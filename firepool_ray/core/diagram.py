"""Draws the transition tables as Mermaid state diagrams, for the README.

A test keeps the README in step with what ``document`` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from firepool_ray.core.pump_state import JOB_MOVES
from firepool_ray.core.tables import LANE_EDGES, WORKER_EDGES


def diagram(edges: Iterable[tuple[str, str, str]], first: str, last: str) -> str:
    """Mermaid text for (from, to, cause) edges."""
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {a} --> {b}: {_label(cause)}" for a, b, cause in edges]
    lines.append(f"    {last} --> [*]")
    return "\n".join(lines) + "\n"


def _label(cause: str) -> str:
    """Colons and semicolons end a label in Mermaid."""
    return cause.replace(":", " -").replace(";", ",")


def _edges(table: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str, str]]:
    return [(a, b, cause) for a, nexts in table.items() for b, cause in nexts.items()]


def worker_diagram() -> str:
    return diagram(_edges(WORKER_EDGES), "starting", "gone")


def lane_diagram() -> str:
    return diagram(_edges(LANE_EDGES), "growing", "gone")


def job_diagram() -> str:
    return diagram([(a, b, cause) for (a, cause), b in JOB_MOVES.items()], "blocked", "ended")


def document() -> str:
    """All of them, as Markdown."""
    parts = (("Job", job_diagram()), ("Worker", worker_diagram()), ("Lane", lane_diagram()))
    return "\n".join(f"{title}:\n\n```mermaid\n{text}```\n" for title, text in parts)
