"""Figures of the core alone: no Ray, no clock inside, only ``Machine.handle``."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from firepool_ray.cli.bench import profiling
from firepool_ray.cli.bench.corebed import CoreBed
from firepool_ray.cli.bench.figures import TARGETS, Measured

ROUNDS = 5
EVENTS_PER_ROUND = 6_000


def measure(names: frozenset[str]) -> Iterator[Measured]:
    if "core_events_per_s" in names:
        yield _events_per_s()
    if "core_growth_ratio" in names:
        yield _growth_ratio()


def _events_per_s() -> Measured:
    bed = CoreBed(lanes=1_000)
    cost_s = _cost_per_event_s(bed)
    detail = f"{1e6 * cost_s:.1f} us of CPU per event; {bed.mix()}"
    if not TARGETS["core_events_per_s"].met_by(1 / cost_s):
        detail += "; " + profiling.hot_spots(lambda: bed.run(EVENTS_PER_ROUND))
    return Measured("core_events_per_s", 1 / cost_s, detail)


def _growth_ratio() -> Measured:
    beds = {lanes: CoreBed(lanes) for lanes in (100, 10_000)}
    costs_s = {lanes: _cost_per_event_s(bed) for lanes, bed in beds.items()}
    ratio = costs_s[10_000] / costs_s[100]
    detail = ", ".join(f"{lanes:,} lanes {1e6 * s:.1f} us" for lanes, s in costs_s.items())
    if not TARGETS["core_growth_ratio"].met_by(ratio):
        for lanes, bed in beds.items():
            detail += f"; {lanes:,} lanes: " + profiling.hot_spots(
                lambda bed=bed: bed.run(EVENTS_PER_ROUND)  # type: ignore[misc]
            )
    return Measured("core_growth_ratio", ratio, detail)


def _cost_per_event_s(bed: CoreBed) -> float:
    """Median over rounds of the CPU time inside ``handle``, per event, after a warm-up."""
    bed.run(EVENTS_PER_ROUND)
    gc.collect()
    costs = []
    for _ in range(ROUNDS):
        events, inside_s = bed.run(EVENTS_PER_ROUND)
        costs.append(inside_s / events)
    return profiling.median(costs)
