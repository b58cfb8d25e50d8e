"""Cost and memory of the machine, as counts: the figures in seconds are ``firepool bench``'s.

The load is that of the bench (``cli.bench.corebed``), with the invariants checked on the way.
"""

from __future__ import annotations

import sys

from firepool_ray.cli.bench.corebed import CoreBed
from firepool_ray.core import events as ev
from firepool_ray.core.ledger import REMEMBERED_CALLERS
from firepool_ray.core.model import Caller
from tests.core.desk import INF, Demand, Desk, pool, profile, ready, want
from tests.core.invariants import check


def test_the_benchs_load_keeps_the_invariants() -> None:
    bed = CoreBed(100)
    for _ in range(20):
        bed.run(200)
        check(bed._machine.pool)


def calls_per_event(lanes: int) -> float:
    """Function calls inside ``handle`` per event: time without the noise of the machine."""
    bed = CoreBed(lanes)
    bed.run(500)
    calls = 0

    def count(_frame: object, what: str, _arg: object) -> None:
        nonlocal calls
        calls += what == "call"

    handle = bed._machine.handle

    def counted(*events: ev.Event) -> object:
        sys.setprofile(count)
        try:
            return handle(*events)
        finally:
            sys.setprofile(None)

    bed._machine.handle = counted  # type: ignore[method-assign,assignment]
    events, _ = bed.run(2000)
    return calls / events


def test_work_per_event_does_not_grow_with_the_pool() -> None:
    assert calls_per_event(2000) <= 1.5 * calls_per_event(100)


def entities(desk: Desk) -> int:
    held = desk.pool
    return sum(
        len(getattr(held, name))
        for name in ("clients", "callers", "workers", "lanes", "warm", "wanting", "agenda")
    )


def test_state_does_not_grow_with_the_number_of_jobs() -> None:
    desk = ready(pool(profile(max_lanes=2)), p=2)
    desk.hold("c1", count=2)
    sizes = []
    for count in (10, 20_000):
        desk.sync("c1", want(), count=count, age_s=1.0)
        sizes.append(entities(desk))
    assert sizes[0] == sizes[1]


def test_callers_and_clients_of_the_past_are_forgotten() -> None:
    desk = Desk(pool(profile(max_lanes=0, standbys=0)))
    machine = desk.machine
    for i in range(2 * REMEMBERED_CALLERS):
        at = float(i)
        demand = Demand(want(Caller("default", f"caller{i}")), 1, 0.0, INF)
        machine.handle(ev.ClientSynced(at, f"client{i}", 1, (), (0, 0), (demand,)))
        machine.handle(ev.ClientLost(at, f"client{i}", "gone"))
    assert not desk.pool.clients and not desk.pool.agenda._numbers
    assert len(desk.pool.callers) <= REMEMBERED_CALLERS
    assert len(desk.pool.departed) <= 4096
    check(desk.pool)
