"""What a new controller does first: take over what stands, and remove what nobody may use.

Called once by ``controller`` before any decision, then ``remove_strays`` now and then: a controller
that was stopped and continued may still create lanes and workers; they carry its epoch.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any

import ray
from ray.exceptions import RayError

from firepool_ray.config import PoolConfig
from firepool_ray.core import events as ev
from firepool_ray.core.model import Caller, ReuseKey
from firepool_ray.errors import StaleEpoch
from firepool_ray.runtime import actors, lanes
from firepool_ray.runtime.effects import Effects, LaneHandle, WorkerHandle
from firepool_ray.runtime.protocol import NAMESPACE, WardenState, WardenWorker
from firepool_ray.runtime.wardens import Link, Wardens, node_alive

log = logging.getLogger(__name__)

_WARDEN = re.compile(r"firepool/warden/([0-9a-f]+)(?:/(\d+))?")
_WORKER = re.compile(r"firepool/([^/]+)/(e(\d+)l\d+)/(\d+)/(e(\d+)w\d+)")
_LANE = re.compile(r"firepool/([^/]+)/(e(\d+)l\d+)")
#: A warden that does not say hello by then is replaced by a successor, or its node is lost.
HELLO_S = 5.0


def _named_actors() -> list[str]:
    rows = ray.util.list_named_actors(all_namespaces=True)
    return [row["name"] for row in rows if row["namespace"] == NAMESPACE]


async def adopt(
    config: PoolConfig, epoch: int, effects: Effects, wardens: Wardens
) -> list[ev.Event]:
    """Find lanes, wardens and workers; return the events that tell the core about them.

    Raises ``StaleEpoch`` if a newer controller is in charge already.
    """
    names, groups = await asyncio.gather(
        asyncio.to_thread(_named_actors), asyncio.to_thread(lanes.groups_of_pool)
    )
    rows = [(match, row) for row in groups if (match := _LANE.fullmatch(row["name"]))]
    if not rows and not names:
        return []
    await _greet(rows, names, epoch, wardens)
    now = time.monotonic()
    events: list[ev.Event] = []
    for match, row in rows:
        profile_name, lane = match.group(1), match.group(2)
        node = (row["bundles_to_node_id"] or {}).get(0, "")
        profile = config.profiles.get(profile_name)
        if row["state"] != "CREATED" or profile is None or node not in wardens.links:
            await _discard_lane(row, names, lane)
            continue
        group = lanes.group_handle(row)
        effects.lanes[lane] = LaneHandle(group, profile_name, node, ())
        events.append(ev.LaneAdopted(now, lane, profile_name, node, profile.device))
    for link in wardens.links.values():
        state = link.state
        for entry in state.workers if state is not None else ():
            if entry.spec.lane in effects.lanes:
                events.extend(_adopt_worker(entry, effects, now))
    return events


async def _greet(
    rows: list[tuple[re.Match[str], dict[str, Any]]],
    names: list[str],
    epoch: int,
    wardens: Wardens,
) -> None:
    """Say hello to the warden of every node with lanes, all at once."""
    nodes = {(row["bundles_to_node_id"] or {}).get(0, "") for _, row in rows} - {""}
    generations: dict[str, int] = {}
    for name in names:
        if match := _WARDEN.fullmatch(name):
            short, generation = match.group(1), int(match.group(2) or 0)
            generations[short] = max(generation, generations.get(short, 0))
    await asyncio.gather(
        *(_greet_one(node, generations.get(node[:16], 0), epoch, wardens) for node in sorted(nodes))
    )


async def _greet_one(node: str, generation: int, epoch: int, wardens: Wardens) -> None:
    if not await asyncio.to_thread(node_alive, node):
        return
    for attempt in range(3):
        handle = await asyncio.to_thread(actors.create_warden, node, generation + attempt)
        try:
            state: WardenState = await asyncio.wait_for(handle.hello.remote(epoch), HELLO_S)
        except StaleEpoch:
            raise
        except (RayError, asyncio.TimeoutError) as error:
            log.warning("warden of node %s does not say hello: %s", node[:12], error)
            continue
        link = Link(node, handle)
        link.generation, link.state = generation + attempt, state
        wardens.adopt(link)
        return


def _adopt_worker(entry: WardenWorker, effects: Effects, now: float) -> list[ev.Event]:
    spec, word = entry.spec, entry.word
    if entry.handle is None or not entry.alive:
        return []
    effects.workers[spec.worker] = WorkerHandle(entry.handle, spec, word.pid, word.fence)
    if entry.gpu_ids:
        effects.lanes[spec.lane].gpu_ids = entry.gpu_ids
    key = None
    if word.state != "standby" and word.caller:
        key = ReuseKey(spec.profile, Caller(word.queue, word.caller), word.deps)
    return [
        ev.WorkerAdopted(
            now,
            spec.worker,
            spec.lane,
            spec.slot,
            word.state,
            key,
            word.fence if key is not None else None,
            word.client,
            entry.age_s,
        )
    ]


async def _discard_lane(row: dict[str, Any], names: list[str], lane: str) -> None:
    log.warning("removing lane %s: nobody can use it any more", lane)
    for name in names:
        match = _WORKER.fullmatch(name)
        if match and match.group(2) == lane:
            await asyncio.to_thread(_kill_named, name)
    await lanes.remove(lanes.group_handle(row))


def _kill_named(name: str) -> None:
    try:
        ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
    except ValueError:
        return  # gone meanwhile


async def remove_strays(epoch: int, effects: Effects) -> None:
    """Remove lanes and workers of older epochs that were not adopted.

    Those of this epoch are the core's own business; those of a newer one mean that this controller
    has been superseded: raises ``StaleEpoch``.
    """
    names, groups = await asyncio.gather(
        asyncio.to_thread(_named_actors), asyncio.to_thread(lanes.groups_of_pool)
    )
    for name in names:
        match = _WORKER.fullmatch(name)
        if match is None or match.group(5) in effects.workers:
            continue
        born = int(match.group(6))
        if born > epoch:
            raise StaleEpoch(epoch, born)
        if born < epoch:
            log.warning("removing worker %s of epoch %d", name, born)
            await asyncio.to_thread(_kill_named, name)
    for row in groups:
        lane_match = _LANE.fullmatch(row["name"])
        if lane_match is None or lane_match.group(2) in effects.lanes:
            continue
        born = int(lane_match.group(3))
        if born > epoch:
            raise StaleEpoch(epoch, born)
        if born < epoch:
            await _discard_lane(row, names, lane_match.group(2))
