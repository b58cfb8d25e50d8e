"""Creation of workers and wardens as Ray actors. The only place that knows their Ray options.

Called by ``effects`` and ``wardens``, in threads: registering a named actor blocks for a few ms.
"""

from __future__ import annotations

import math
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from firepool_ray.config import ProfileConfig
from firepool_ray.runtime import lanes
from firepool_ray.runtime.protocol import (
    NAMESPACE,
    WorkerSpec,
    warden_actor_name,
    worker_actor_name,
)
from firepool_ray.runtime.warden import Warden
from firepool_ray.runtime.worker import PoolWorker

#: Named for people: the dashboard and ``ray list actors`` show the class.
FirepoolWorker: Any = ray.remote(type("FirepoolWorker", (PoolWorker,), {"__module__": __name__}))
FirepoolWarden: Any = ray.remote(type("FirepoolWarden", (Warden,), {"__module__": __name__}))


def worker_share(amount: float, slots: int) -> float:
    """Part of a lane's resource that one of its workers asks of Ray, in Ray's 1/10000 steps."""
    return math.floor(amount / slots * 10_000) / 10_000


def create_worker(
    spec: WorkerSpec, profile: ProfileConfig, group: PlacementGroup, warden: Any
) -> Any:
    """Start a worker in its lane and return its handle at once."""
    slots = profile.standbys + 1
    # A lane of several GPUs cannot be shared out in fractions: Ray hands out whole ones there.
    gpus = worker_share(profile.gpus, slots) if profile.gpus <= 1 else 0
    return FirepoolWorker.options(
        name=worker_actor_name(spec.profile, spec.lane, spec.slot, spec.worker),
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=0,
        max_task_retries=0,
        num_cpus=worker_share(profile.cpus, slots),
        num_gpus=gpus,
        scheduling_strategy=lanes.strategy(group),
    ).remote(spec, warden)


def create_warden(node_id: str, generation: int) -> Any:
    """The node's warden: the one that runs, or a new one."""
    return FirepoolWarden.options(
        name=warden_actor_name(node_id, generation),
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=10_000,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
    ).remote(node_id)
