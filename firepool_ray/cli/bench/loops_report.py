"""The table of ``firepool bench --loops``: live beside simulated, and whether the orders agree."""

from __future__ import annotations

import json
from collections.abc import Sequence

from firepool_ray.cli.bench.loops import Outcome, Row
from firepool_ray.cli.bench.report import machine
from firepool_ray.cli.render import duration, table


def errors(row: Row) -> dict[str, float]:
    """The simulator's error against the live run, relative; of what is long enough to compare."""
    live, said = row.live, row.simulated
    if said is None:
        return {}
    return {
        "loop_s": said.loop_s / live.loop_s - 1,
        "held_gpu_s": said.held_gpu_s / live.held_gpu_s - 1,
        "idle_gpu_s": (said.idle_gpu_s - live.idle_gpu_s) / live.held_gpu_s,
        "warm": said.warm - live.warm,
    }


def orders(rows: Sequence[Row]) -> dict[str, tuple[list[str], list[str]]]:
    """Policies from best to worst, live and simulated: by loop time and by GPU-seconds held."""
    pairs = [(row.live, row.simulated) for row in rows if row.simulated is not None]
    found = {}
    for name in ("loop_s", "held_gpu_s"):
        live = sorted(pairs, key=lambda pair: float(getattr(pair[0], name)))
        said = sorted(pairs, key=lambda pair: float(getattr(pair[1], name)))
        found[name] = ([pair[0].name for pair in live], [pair[0].name for pair in said])
    return found


def as_text(rows: Sequence[Row]) -> str:
    header = ("loops", "", "loop", "p50", "p90", "held GPU-s", "idle GPU-s", "warm")
    body = []
    for row in rows:
        body.append(_line(row.live.name, "live", row.live))
        if row.simulated is not None:
            body.append(_line("", "simulated", row.simulated))
            error = errors(row)
            body.append(
                (
                    "",
                    "error",
                    f"{error['loop_s']:+.1%}",
                    "",
                    "",
                    f"{error['held_gpu_s']:+.1%}",
                    f"{error['idle_gpu_s']:+.1%} of held",
                    f"{100 * error['warm']:+.1f} points",
                )
            )
    lines = [
        f"by {name}: live {' < '.join(live)}; simulated {' < '.join(said)}"
        + ("" if live == said else "  DIFFERENT")
        for name, (live, said) in orders(rows).items()
    ]
    about = ", ".join(f"{name} {value}" for name, value in machine().items())
    return "\n".join([table(header, body), "", *lines, "", about])


def _line(name: str, kind: str, outcome: Outcome) -> tuple[str, ...]:
    return (
        name,
        kind,
        duration(outcome.loop_s),
        duration(outcome.p50_s),
        duration(outcome.p90_s),
        f"{outcome.held_gpu_s:.1f}",
        f"{outcome.idle_gpu_s:.1f}",
        f"{outcome.warm:.1%}",
    )


def as_json(rows: Sequence[Row]) -> str:
    return json.dumps(
        {
            "machine": machine(),
            "rows": [
                {
                    "live": row.live._asdict(),
                    "simulated": row.simulated._asdict() if row.simulated else None,
                    "error": errors(row),
                }
                for row in rows
            ],
            "orders": {
                name: {"live": live, "simulated": said, "same": live == said}
                for name, (live, said) in orders(rows).items()
            },
        },
        indent=2,
    )
