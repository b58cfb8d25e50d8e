"""Where the time goes: asked only when a target is missed, so that it never disturbs a figure."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

TOP = 8


def hot_spots(work: Callable[[], object]) -> str:
    """Run ``work`` under cProfile; the functions with the most own time, as one line."""
    profiler = cProfile.Profile()
    profiler.runcall(work)
    stats = pstats.Stats(profiler)
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])  # type: ignore[attr-defined]
    total = sum(row[1][2] for row in rows) or 1.0
    shares = (
        f"{_short(where)} {100 * own / total:.0f} % ({calls} calls)"
        for where, (_, calls, own, _, _) in rows[:TOP]
    )
    return "own time: " + ", ".join(shares)


def phases(jobs: Iterable[Mapping[str, float]]) -> str:
    """Median length of each phase over some jobs, as one line; phases in milliseconds."""
    rows = list(jobs)
    medians = (
        f"{name} {1000 * median([row[name] for row in rows]):.3f}"
        for name in (rows[0] if rows else ())
    )
    return "median ms by phase: " + ", ".join(medians)


def percentile(values: Iterable[float], p: float) -> float:
    """Nearest-rank percentile, so that it is a value that really occurred."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))]


def median(values: Iterable[float]) -> float:
    return percentile(values, 50)


def _short(where: tuple[str, int, str]) -> str:
    path, line, name = where
    return f"{Path(path).name}:{line}:{name}" if line else name
