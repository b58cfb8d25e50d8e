"""Where the time goes: asked only when a target is missed, so that it never disturbs a figure."""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

TOP = 8
SAMPLE_S = 0.002


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


def cpu_by_function(work: Callable[[], object]) -> str:
    """Run ``work`` while all threads of this process are sampled; what used the CPU, as one line.

    The CPU time a thread used since the last sample is put down to the function it is in now, so
    that a waiting thread counts for nothing.
    """
    spent: defaultdict[str, float] = defaultdict(float)
    done = threading.Event()

    def sample() -> None:
        before: dict[int, float] = {}
        while not done.wait(SAMPLE_S):
            before = _sample(spent, before)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        work()
    finally:
        done.set()
        sampler.join()
    total = sum(spent.values()) or 1.0
    ranked = sorted(spent.items(), key=lambda item: -item[1])
    shares = (f"{where} {100 * s / total:.0f} %" for where, s in ranked[:TOP])
    return f"{total:.2f} s of CPU in this process: " + ", ".join(shares)


def _sample(spent: defaultdict[str, float], before: dict[int, float]) -> dict[int, float]:
    now: dict[int, float] = {}
    for thread, frame in sys._current_frames().items():
        if thread == threading.get_ident():
            continue
        # A thread cannot end between these two lines: it would need the interpreter lock.
        now[thread] = time.clock_gettime(time.pthread_getcpuclockid(thread))
        code = frame.f_code
        used_s = now[thread] - before.get(thread, now[thread])
        if used_s > 0:
            where = _short((code.co_filename, code.co_firstlineno, code.co_name))
            spent[where] += used_s
    return now


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
