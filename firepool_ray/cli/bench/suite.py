"""Runs the groups, each in a fresh process with a Ray of its own, and judges what they measure.

A group that hangs or crashes costs its own figures only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence

import click

from firepool_ray.cli.bench.figures import (
    GROUPS,
    TARGETS,
    Figure,
    Measured,
    Target,
    judge,
    not_measured,
)
from firepool_ray.errors import UnknownName

GROUP_LIMIT_S = 240.0


def measure(only: Sequence[str] = ()) -> list[Figure]:
    """Measure all figures, or those named. Raises ``UnknownName`` for one that does not exist."""
    for name in only:
        if name not in TARGETS:
            raise UnknownName("figure", name, TARGETS)
    chosen = {
        group: wanted
        for group, targets in GROUPS.items()
        if (wanted := tuple(t for t in targets if not only or t.name in only))
    }
    figures: list[Figure] = []
    with click.progressbar(
        chosen.items(),
        label="Measuring",
        file=sys.stderr,
        item_show_func=lambda item: item[0] if item else "",
    ) as groups:
        for group, targets in groups:
            figures += _measure_group(group, targets)
    return figures


def _measure_group(group: str, targets: tuple[Target, ...]) -> list[Figure]:
    command = [sys.executable, "-m", "firepool_ray.cli.bench.group", group]
    try:
        done = subprocess.run(
            [*command, *(target.name for target in targets)],
            capture_output=True,
            text=True,
            timeout=GROUP_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        why = f"the group {group!r} ran past {GROUP_LIMIT_S:.0f} s"
        return _judge_all(targets, _parse(_as_text(error.stdout)), why)
    why = f"the group {group!r} ended with status {done.returncode}: {_tail(done.stderr)}"
    return _judge_all(targets, _parse(done.stdout), why)


def _judge_all(
    targets: tuple[Target, ...], measured: dict[str, Measured], why: str
) -> list[Figure]:
    return [
        judge(target, measured[target.name])
        if target.name in measured
        else not_measured(target, why)
        for target in targets
    ]


def _parse(printed: str) -> dict[str, Measured]:
    """The lines a group printed before it ended; what else it printed is skipped."""
    found = (_parse_line(line) for line in printed.splitlines())
    return {measured.name: measured for measured in found if measured is not None}


def _parse_line(line: str) -> Measured | None:
    try:
        name, value, detail = json.loads(line)
    except (ValueError, TypeError):
        return None
    return Measured(str(name), float(value), str(detail))


def _as_text(output: bytes | str | None) -> str:
    # ``TimeoutExpired`` carries bytes even where text was asked for.
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _tail(text: str) -> str:
    lines: Iterable[str] = [line for line in text.splitlines() if line.strip()][-5:]
    return " | ".join(lines) or "it said nothing"
