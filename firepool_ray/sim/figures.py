"""The promises of budgets, keep-alive and simulator, measured: one function per promise.

``run`` is called by ``firepool simulate --figures FOLDER``; ``lines`` prints what it returns. The
folder holds ``agent_tool_calls.csv``, ``image_jobs.csv`` and ``cold_start_s.csv``: any part of
those traces. Figures of generated loads need none. The functions themselves lie in
``figures_cost``, ``figures_loops`` and ``figures_limits``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from firepool_ray.errors import UnknownName
from firepool_ray.sim import figures_cost, figures_limits, figures_loops
from firepool_ray.sim.figures_base import Figure, Folder, Progress, quiet

#: By the name that ``only`` takes, in the order in which they are shown.
FIGURES: dict[str, Callable[[Folder, Progress], list[Figure]]] = {
    "agents-bash": figures_cost.agents_bash,
    "agents-all": figures_cost.agents_all,
    "image": figures_cost.image,
    "sweep": figures_cost.sweep,
    "cap": figures_cost.cap,
    "rl": figures_loops.rl,
    "headline": figures_loops.headline,
    "loop-time": figures_loops.loop_time,
    "fairness": figures_limits.fairness,
    "scale": figures_limits.scale,
}


def run(
    folder: Path | None, only: Iterable[str] = (), progress: Progress | None = None
) -> list[Figure]:
    """Measure all figures, or those named. ``progress`` is told what is being measured.

    Raises ``UnknownName`` for a name that is none, ``TraceError`` for a file that cannot be read.
    """
    names = list(only) or list(FIGURES)
    for name in names:
        if name not in FIGURES:
            raise UnknownName("figure", name, FIGURES)
    place = Folder(folder)
    return [figure for name in names for figure in FIGURES[name](place, progress or quiet)]


def lines(figures: Iterable[Figure]) -> Iterator[str]:
    """A table for people: the promise, whether it was reached, and its numbers."""
    for figure in figures:
        yield f"{figure.name}: {'reached' if figure.ok else 'MISSED'} ({figure.reach})"
        width = max(map(len, figure.values), default=0)
        for label, value in figure.values.items():
            yield f"    {label:<{width}}  {_shown(value)}"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
