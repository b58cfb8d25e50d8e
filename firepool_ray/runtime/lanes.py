"""Lanes as Ray sees them: detached placement groups with one bundle. Called by ``effects`` only.

Ray's placement group calls block for 1-4 ms, so they run in threads, never on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from firepool_ray.config import PoolConfig, ProfileConfig
from firepool_ray.runtime.protocol import lane_group_name

PROFILE_LABEL = "firepool/profile"
#: First and longest pause between two looks at a pending group.
_POLL_S, _POLL_MAX_S = 0.005, 0.25


class LaneLost(Exception):
    """The lane's group could not be placed; the message says why."""


def bundle_of(profile: ProfileConfig) -> dict[str, float]:
    bundle = dict(profile.resources)
    if profile.gpus:
        bundle["GPU"] = profile.gpus
    if profile.cpus:
        bundle["CPU"] = profile.cpus
    if profile.memory_bytes:
        bundle["memory"] = float(profile.memory_bytes)
    return bundle


def labels_of(config: PoolConfig, profile_name: str) -> dict[str, str]:
    """Labels of the nodes that may carry the profile's lanes; on Kubernetes those of its group."""
    labels = dict(config.profiles[profile_name].labels)
    if config.kubernetes is not None:
        labels.setdefault(PROFILE_LABEL, profile_name)
    return labels


def _create(
    profile_name: str, profile: ProfileConfig, lane: str, labels: dict[str, str]
) -> PlacementGroup:
    selector = [labels] if labels else None
    group: PlacementGroup = placement_group(
        [bundle_of(profile)],
        strategy="PACK",
        name=lane_group_name(profile_name, lane),
        lifetime="detached",
        bundle_label_selector=selector,
    )
    return group


async def create(config: PoolConfig, profile_name: str, lane: str) -> tuple[PlacementGroup, str]:
    """Reserve the lane's bundle and wait for its node.

    Returns the group and the node id. Raises ``LaneLost`` after ``grow_deadline_s``, with Ray's
    last word on why; the group is then removed.
    """
    profile, labels = config.profiles[profile_name], labels_of(config, profile_name)
    group = await asyncio.to_thread(_create, profile_name, profile, lane, labels)
    deadline = time.monotonic() + profile.grow_deadline_s
    pause = _POLL_S
    try:
        while True:
            row: dict[str, Any] = await asyncio.to_thread(placement_group_table, group)
            if row.get("state") == "CREATED":
                return group, row["bundles_to_node_id"][0]
            if row.get("state") == "REMOVED":
                raise LaneLost("its placement group was removed by somebody else")
            if time.monotonic() >= deadline:
                state = row.get("stats", {}).get("scheduling_state", row.get("state"))
                raise LaneLost(
                    f"no node offered {bundle_of(profile)} with labels {labels} within "
                    f"{profile.grow_deadline_s:g} s (Ray says {state})"
                )
            await asyncio.sleep(pause)
            pause = min(_POLL_MAX_S, pause * 1.5)
    except BaseException:
        await asyncio.to_thread(remove_placement_group, group)
        raise


async def remove(group: PlacementGroup) -> None:
    await asyncio.to_thread(remove_placement_group, group)


def strategy(group: PlacementGroup) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=0, placement_group_capture_child_tasks=False
    )


def groups_of_pool() -> list[dict[str, Any]]:
    """Rows of all groups that carry a lane's name and are not removed. Blocks."""
    return [
        row
        for row in placement_group_table().values()
        if row["name"].startswith("firepool/") and row["state"] != "REMOVED"
    ]


def group_handle(row: dict[str, Any]) -> PlacementGroup:
    """A handle for a group known only from the table."""
    identity = ray.PlacementGroupID(bytes.fromhex(row["placement_group_id"]))
    return PlacementGroup(identity, [dict(bundle) for bundle in row["bundles"].values()])


@ray.remote(num_cpus=0, max_retries=0)
def _gpu_ids() -> list[str]:
    return [str(i) for i in ray.get_runtime_context().get_accelerator_ids().get("GPU", [])]


async def probe_gpus(group: PlacementGroup, gpus: float) -> tuple[str, ...]:
    """Ids of the bundle's GPUs, from a task that takes the whole bundle once."""
    probe = _gpu_ids.options(
        num_gpus=gpus, scheduling_strategy=strategy(group), name="firepool: which GPUs?"
    )
    return tuple(await probe.remote())
