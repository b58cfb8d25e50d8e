"""What is measured and what is to be reached. Pure data; used by ``suite`` and the groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the table of figures."""

    name: str
    unit: str
    bound: float
    at_least: bool = False  #: the bound is a floor, else a ceiling
    what: str = ""

    def met_by(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"


class Measured(NamedTuple):
    """What a group found: a value, and in words what went into it."""

    name: str
    value: float
    detail: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One judged value. ``value`` is None where it could not be measured; ``detail`` says why."""

    name: str
    value: float | None
    unit: str
    target: str
    ok: bool
    detail: str


#: Groups in the order in which they run, each with its figures.
GROUPS: dict[str, tuple[Target, ...]] = {
    "core": (
        Target(
            "core_events_per_s", "events/s", 30_000, at_least=True, what="core alone, 1,000 lanes"
        ),
        Target("core_growth_ratio", "x", 2.0, what="cost per event, 10,000 lanes against 100"),
    ),
    "warm": (
        Target("warm_p50_ratio", "x", 1.35, what="warm no-op job against a bare actor call, p50"),
        Target("warm_p99_ratio", "x", 3.0, what="the same at p99"),
        Target(
            "warm_throughput_ratio",
            "x",
            0.9,
            at_least=True,
            what="2,000 no-op jobs on 4 workers against ray.util.ActorPool",
        ),
    ),
    "burst": (
        Target("burst_ratio", "x", 1.3, what="64 jobs of 20 ms on 8 workers against 160 ms"),
    ),
    "starts": (
        Target(
            "standby_ratio", "x", 0.05, what="promotion of a standby, p50, against a fresh actor"
        ),
        Target("handover_ratio", "x", 0.2, what="handover, p90, against a fresh actor"),
    ),
    "siblings": (
        Target("moved_ratio", "x", 6.0, what="lease moved from a sibling, p50, against warm"),
    ),
    "controller": (
        Target(
            "controller_growth",
            "relative",
            0.05,
            what="controller memory, 20,000 jobs waiting or done against 2,000",
        ),
    ),
    "recovery": (
        Target("recovery_s", "s", 3.0, what="controller killed with 20 lanes, to a new grant"),
    ),
}

TARGETS: dict[str, Target] = {
    target.name: target for targets in GROUPS.values() for target in targets
}


def judge(target: Target, measured: Measured) -> Figure:
    return Figure(
        name=target.name,
        value=measured.value,
        unit=target.unit,
        target=str(target),
        ok=target.met_by(measured.value),
        detail=measured.detail,
    )


def not_measured(target: Target, why: str) -> Figure:
    return Figure(target.name, None, target.unit, str(target), False, f"not measured: {why}")
