"""The figures as text and as JSON, with the machine they were measured on."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from firepool_ray.cli.bench.figures import TARGETS, Figure, Target
from firepool_ray.cli.render import table


def as_json(figures: Sequence[Figure]) -> str:
    return json.dumps(
        {"machine": machine(), "figures": [dataclasses.asdict(figure) for figure in figures]},
        indent=2,
    )


def as_text(figures: Sequence[Figure], targets: Mapping[str, Target] = TARGETS) -> str:
    rows = [
        (
            figure.name,
            "-" if figure.value is None else f"{figure.value:.4g}",
            figure.unit,
            figure.target,
            "ok" if figure.ok else ("MISSED" if figure.value is not None else "FAILED"),
            targets[figure.name].what,
        )
        for figure in figures
    ]
    details = "\n".join(f"{figure.name}: {figure.detail}" for figure in figures)
    header = ("figure", "value", "unit", "target", "", "what")
    about = ", ".join(f"{name} {value}" for name, value in machine().items())
    return f"{table(header, rows)}\n\n{details}\n\n{about}"


def machine() -> dict[str, Any]:
    """What a reader must know to compare figures."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "ray": metadata.version("ray"),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
