"""Runs of several policies side by side: the table, and the same figures for JSON.

Called by ``firepool simulate``. Cost and warm share always stand beside each other: a policy that
never holds anything can look cheap while it serves nothing warm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from firepool_ray.core.model import SOURCES
from firepool_ray.sim.result import Result

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Row:
    """One policy's run; bounds in GPU-seconds, None where they were not computed.

    A run whose jobs wait for starts has a schedule of its own; what a policy is measured by is the
    bound of that schedule. The bound of the load as recorded (if every start took no time) is the
    same for all policies, but one that makes jobs wait may come below it.
    """

    policy: str
    result: Result
    bound_gpu_s: float | None = None  #: of the schedule as it was run, under the run's cap
    recorded_gpu_s: float | None = None  #: of the load as recorded, without a cap

    @property
    def ratio(self) -> float | None:
        """Cost over the bound; None without one, or where that is 0."""
        return self.result.cost_gpu_s / self.bound_gpu_s if self.bound_gpu_s else None


def always_on_gpu_s(rows: Sequence[Row]) -> float:
    """What the shares compare with: all that may be held, all the time.

    The cap times the span where there is a cap; else what ``always`` held where that was run; else
    the highest peak of all runs, held for as long as the longest of them.
    """
    results = [row.result for row in rows]
    if all(result.max_gpus < float("inf") for result in results):
        return max(result.always_on_gpu_s for result in results)
    for row in rows:
        if row.policy == "always":
            return row.result.held_gpu_s
    return max(r.peak_gpus for r in results) * max(r.span_s for r in results)


def to_dict(rows: Sequence[Row], *, curve: bool = True) -> dict[str, Any]:
    """All of it, for JSON."""
    always_on = always_on_gpu_s(rows)
    policies = []
    for row in rows:
        shown = {"policy": row.policy, **row.result.to_dict(curve=curve)}
        shown["always_on_gpu_s"] = always_on
        shown["share_of_always_on"] = row.result.held_gpu_s / max(always_on, 1e-9)
        shown["bound_gpu_s"] = row.bound_gpu_s
        shown["recorded_bound_gpu_s"] = row.recorded_gpu_s
        shown["cost_over_bound"] = row.ratio
        policies.append(shown)
    return {"always_on_gpu_s": always_on, "policies": policies}


def to_text(rows: Sequence[Row]) -> str:
    """Two tables with a row per policy, and a line for jobs that could not run."""
    parts = [
        "Served",
        _table([_SERVED, *(_served(row) for row in rows)]),
        "",
        "GPU-seconds",
        _table([_HELD, *(_held(row, always_on_gpu_s(rows)) for row in rows)]),
    ]
    if any(row.result.sessions for row in rows):
        loops = ", ".join(f"{row.policy} {_seconds(row.result.loop_s)}" for row in rows)
        parts += ["", f"Mean length of a session: {loops}"]
    for row in rows:
        if row.result.failed:
            causes = ", ".join(f"{n} {cause}" for cause, n in row.result.failed.items())
            parts += ["", f"{row.policy}: jobs that could not run: {causes}"]
            parts += [f"  {row.result.first_failure}"] if row.result.first_failure else []
    return "\n".join(parts)


_SERVED = (
    "policy",
    "jobs",
    *SOURCES,
    "ready",
    "at peak",
    "start p50",
    "p90",
    "p99",
    "longest",
    "Jain",
)
_HELD = (
    "policy",
    "cost",
    "of bound",
    "warm",
    "busy",
    "idle",
    "free",
    "starting",
    "held",
    "of always-on",
)


def _served(row: Row) -> list[str]:
    result = row.result
    total = max(1, sum(result.sources.values()))
    return [
        row.policy,
        f"{result.jobs}",
        *(_share(result.sources[source] / total) for source in SOURCES),
        _share(result.ready_share),
        _share(result.peak_ready_share()),
        *(_seconds(result.latencies.percentile(q)) for q in (0.5, 0.9, 0.99)),
        _seconds(max(result.longest_wait_s.values(), default=None)),
        f"{min(result.jain_queues, result.jain_callers):.2f}",
    ]


def _held(row: Row, always_on: float) -> list[str]:
    result = row.result
    return [
        row.policy,
        f"{result.cost_gpu_s:.0f}",
        f"{row.ratio:.2f} x" if row.ratio is not None else NOTHING,
        _share(result.warm_share),
        *(f"{result.gpu_s[state]:.0f}" for state in ("busy", "idle", "free", "starting")),
        f"{result.held_gpu_s:.0f}",
        _share(result.held_gpu_s / max(always_on, 1e-9)),
    ]


def _share(part: float) -> str:
    return f"{100 * part:.1f} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value < 1e-3:
        return "0 s"
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """The first column left, the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        lines.append("  " + "  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
