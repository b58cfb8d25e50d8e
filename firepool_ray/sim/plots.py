"""The picture of a comparison: GPUs over time, start latencies, cost against the bound.

Called by ``firepool simulate --plot``. The only place that imports matplotlib, and only when used.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firepool_ray.errors import UsageError
from firepool_ray.observe import histogram
from firepool_ray.sim.accounts import STATES
from firepool_ray.sim.report import Row

_COLOURS = {"busy": "#2f6f4f", "idle": "#e0a030", "starting": "#b04040", "free": "#9aa7b0"}
#: Policies whose GPUs over time are shown, one below the other.
MOST_CURVES = 4


def draw(rows: Sequence[Row], path: str | Path) -> None:
    """Write a PNG. Raises ``UsageError`` without matplotlib, or where it cannot be written."""
    plt = _pyplot()
    curves = rows[:MOST_CURVES]
    figure, axes = plt.subplots(
        len(curves) + 1,
        1,
        figsize=(10, 2.4 * len(curves) + 3.4),
        gridspec_kw={"height_ratios": [2.4] * len(curves) + [3.2]},
        layout="constrained",
        squeeze=False,
    )
    try:
        _draw_curves(axes[:-1, 0], curves)
        _draw_last_row(figure, axes[-1, 0], rows)
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: the picture cannot be written: {error}") from None
    finally:
        plt.close(figure)


def _pyplot() -> Any:
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise UsageError("pictures need matplotlib: pip install 'firepool-ray[plots]'") from None


def _draw_curves(axes: Any, rows: Sequence[Row]) -> None:
    top = max(
        (max(map(sum, zip(*row.result.curve.gpus.values(), strict=True))) for row in rows),
        default=1.0,
    )
    last_s = max(row.result.span_s for row in rows)
    for axis, row in zip(axes, rows, strict=True):
        curve = row.result.curve
        bins = len(curve.gpus["busy"])
        times = [curve.bin_s * i for i in range(bins + 1)]
        layers = [[*curve.gpus[state], curve.gpus[state][-1]] for state in STATES]
        axis.stackplot(
            times,
            *layers,
            labels=STATES,
            colors=[_COLOURS[state] for state in STATES],
            step="post",
            linewidth=0,
        )
        axis.set_ylim(0, max(1.0, 1.05 * top))
        axis.set_xlim(0, max(last_s, 1e-9))
        axis.set_ylabel("GPUs")
        axis.set_title(f"{row.policy}: GPUs over time", loc="left", fontsize=10)
    axes[0].legend(loc="upper right", ncols=len(STATES), fontsize=8, frameon=False)
    axes[-1].set_xlabel("seconds")


def _draw_last_row(figure: Any, axis: Any, rows: Sequence[Row]) -> None:
    """Left the start latencies, right cost beside the bound."""
    left, right = axis.get_subplotspec().subgridspec(1, 2).subplots()
    axis.remove()
    for row in rows:
        counts = row.result.latencies.counts
        total = max(1, sum(counts.values()))
        seen, xs, ys = 0, [], []
        for bucket in sorted(counts):
            seen += counts[bucket]
            xs.append(max(histogram.middle_of(bucket), 1e-3))
            ys.append(seen / total)
        left.step(xs, ys, where="post", label=row.policy)
    left.set_xscale("log")
    left.set_ylim(0, 1.02)
    left.set_xlabel("start latency, seconds (1 ms and less at the left)")
    left.set_ylabel("part of the jobs")
    left.legend(loc="lower right", fontsize=8, frameon=False)
    names = [row.policy for row in rows]
    right.bar(names, [row.result.cost_gpu_s for row in rows], color="#5b7fa6", width=0.6)
    for number, row in enumerate(rows):
        if row.bound_gpu_s:
            at = (number - 0.36, number + 0.36)
            right.hlines(row.bound_gpu_s, *at, color="black", linestyle="--", linewidth=1.5)
            right.set_title("dashed: the least possible", loc="right", fontsize=8)
    for number, row in enumerate(rows):
        warm = f"warm {100 * row.result.warm_share:.0f} %"
        right.annotate(warm, (number, row.result.cost_gpu_s), ha="center", va="bottom", fontsize=8)
    right.set_ylabel("cost, GPU-seconds")
    right.margins(y=0.15)
    figure.align_ylabels()
