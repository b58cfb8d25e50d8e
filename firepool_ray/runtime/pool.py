"""Start, find and stop a pool on the Ray cluster this process is connected to.

Called by the client (``fp.start``, the first ``submit``) and the command line. Ray must be
initialised, except for ``ensure_pool``, which starts a local Ray if there is none.
"""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from firepool_ray.config import PoolConfig, ProfileConfig
from firepool_ray.errors import PoolUnavailable
from firepool_ray.runtime import kv
from firepool_ray.runtime.cluster import join_or_start
from firepool_ray.runtime.controller import Controller
from firepool_ray.runtime.lanes import bundle_of
from firepool_ray.runtime.protocol import CONTROLLER_NAME, NAMESPACE

log = logging.getLogger(__name__)

#: A controller that has not taken over by then is stuck.
START_S = 60.0
#: Ray nodes that hold the controller of a pool on Kubernetes, and no lanes.
SYSTEM_LABELS = {"firepool/role": "system"}
STOP_S = 30.0

FirepoolController: Any = ray.remote(
    type("FirepoolController", (Controller,), {"__module__": __name__})
)


def find_pool() -> Any | None:
    """The handle of the running pool's controller; None where no pool runs."""
    try:
        return ray.get_actor(CONTROLLER_NAME, namespace=NAMESPACE)
    except ValueError:
        return None


def start_pool(config: PoolConfig, *, embedded: bool = False, name: str = CONTROLLER_NAME) -> Any:
    """Start the pool, or find the one that runs: racing callers share one.

    Returns the controller's handle once it answers. Raises ``PoolUnavailable`` if it does not.
    """
    running = find_pool() if name == CONTROLLER_NAME else None
    if running is None:
        sized = config.with_capacity(capacity(config))
        kv.put_config(sized.model_copy(update={"embedded": embedded}))
        # Any system pod will do: bound to one node, it would be gone for good with that.
        place = {"label_selector": SYSTEM_LABELS} if config.kubernetes is not None else {}
        running = FirepoolController.options(
            **place,
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=100_000,
        ).remote()
    try:
        ray.get(running.ping.remote(), timeout=START_S)
    except (GetTimeoutError, RayError) as error:
        raise PoolUnavailable(
            f"the pool's controller does not start ({type(error).__name__}: {error}); "
            "see its log in the Ray dashboard, actor firepool-controller"
        ) from error
    return running


def stop_pool(handle: Any) -> None:
    """End the pool: its workers, lanes and wardens, then its controller."""
    try:
        ray.get(handle.end.remote(), timeout=STOP_S)
    except RayActorError:
        log.info("the controller was gone already")
    except (GetTimeoutError, RayError) as error:
        log.warning("the pool did not end in order: %s", error)
    ray.kill(handle, no_restart=True)


def capacity(config: PoolConfig) -> dict[str, int]:
    """How many lanes of each profile the cluster's nodes could hold, were they all its own."""
    rows: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [row for row in rows if row["Alive"]]
    return {
        name: sum(_fits(profile, node) for node in nodes)
        for name, profile in config.profiles.items()
    }


def largest_store_bytes() -> float:
    """What the largest object store of the cluster can hold."""
    rows: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    stores = [row["Resources"].get("object_store_memory", 0.0) for row in rows if row["Alive"]]
    return max(stores, default=float("inf"))


def _fits(profile: ProfileConfig, node: dict[str, Any]) -> int:
    labels = node.get("Labels", {})
    if any(not _matches(labels.get(key), value) for key, value in profile.labels.items()):
        return 0
    resources = node["Resources"]
    return min(
        int(resources.get(key, 0) / amount + 1e-6) for key, amount in bundle_of(profile).items()
    )


def _matches(value: str | None, wanted: str) -> bool:
    """Ray's label selector: ``v``, ``!v``, ``in(a,b)``, ``!in(a,b)``."""
    negated = wanted.startswith("!")
    wanted = wanted.removeprefix("!")
    if wanted.startswith("in(") and wanted.endswith(")"):
        hit = value in [item.strip() for item in wanted[3:-1].split(",")]
    else:
        hit = value == wanted
    return hit != negated


def default_config() -> PoolConfig:
    """Profiles derived from what the cluster has.

    ``gpu``: one lane per GPU, where there are any, and the default then. ``cpu``: lanes of half a
    core. Together they reserve at most half of the CPUs, so that the driver's own tasks run too.
    Workers are held for a minute: nobody else waits for what a pool of one driver holds.
    """
    kept = {"standbys": 1, "keep_alive": "fixed:60", "lane_keep_s": 300.0}
    total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus, cpus = int(total.get("GPU", 0)), float(total.get("CPU", 1))
    profiles: dict[str, dict[str, Any]] = {}
    if gpus:
        share = round(min(1.0, cpus / 4 / gpus), 2)
        profiles["gpu"] = {"gpus": 1.0, "cpus": share, "max_lanes": gpus, **kept}
    lanes = max(1, int(cpus / 2 if gpus else cpus))
    profiles["cpu"] = {"cpus": 0.5, "max_lanes": lanes, **kept}
    return PoolConfig.from_dict({"profiles": profiles}, "derived pool settings")


def ensure_pool() -> tuple[Any, bool, bool]:
    """The running pool, or an embedded one started now; a local Ray first, if there is none.

    Returns (controller handle, whether the pool was started here, whether Ray was).
    """
    started_ray = join_or_start()
    handle = find_pool()
    if handle is not None:
        return handle, False, started_ray
    config = default_config()
    handle = start_pool(config, embedded=True)
    lanes = ", ".join(
        f"{name}: up to {profile.max_lanes} lanes of {profile.gpus:g} GPU"
        for name, profile in config.profiles.items()
    )
    where = "a local Ray and " if started_ray else ""
    log.warning("firepool: started %san embedded pool (%s)", where, lanes)
    return handle, True, started_ray
