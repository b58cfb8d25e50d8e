"""Plain Ray, as the benchmark compares the pool with it. Nothing here knows the pool.

It lies here because only ``runtime`` may import ray; ``cli.bench`` is the only user.
"""

from __future__ import annotations

import importlib
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.util import ActorPool
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@contextmanager
def local_cluster(cpus: int, gpus: int = 0) -> Iterator[None]:
    """A Ray of this process's own, with logical resources; nothing of it is left afterwards."""
    folder = tempfile.mkdtemp(prefix="fpb")
    ray.init(
        address="local",
        num_cpus=cpus,
        num_gpus=gpus,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        _temp_dir=folder,
    )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


class Bare:
    """The actor that does what a no-op job does."""

    def nothing(self) -> None:
        return None

    def now(self) -> float:
        return time.time()


def bare_actor(**options: Any) -> Any:
    """An actor that has started."""
    actor = start_actor(Bare, **options)
    call(actor, "nothing")
    return actor


def bare_call_s(actor: Any) -> float:
    """One call and its result, as a Ray user writes it. Seconds."""
    began = time.perf_counter()
    ray.get(actor.nothing.remote())
    return time.perf_counter() - began


def actor_pool_s(actors: list[Any], calls: int) -> float:
    """So many calls through ``ray.util.ActorPool``, results in any order. Seconds."""
    pool: Any = ActorPool(actors)
    began = time.perf_counter()
    for _ in pool.map_unordered(lambda actor, _: actor.nothing.remote(), range(calls)):
        pass
    return time.perf_counter() - began


def fresh_actor_s(**options: Any) -> float:
    """From asking for an actor to the first instruction of its first method. Seconds."""
    began = time.time()
    actor = start_actor(Bare, **options)
    took_s: float = call(actor, "now") - began
    ray.kill(actor)
    return took_s


def start_actor(cls: type, **options: Any) -> Any:
    """An actor of ``cls`` for ``call``; ``options`` are Ray's (``num_cpus`` ...)."""
    actor_class: Any = ray.remote(cls)
    return actor_class.options(**options).remote()


def call(actor: Any, method: str, *args: object) -> Any:
    return ray.get(getattr(actor, method).remote(*args))


def stop_actors(actors: list[Any]) -> None:
    for actor in actors:
        ray.kill(actor)


class _Loaded:
    """An actor that imports a module before it serves, as a worker preloads it."""

    def __init__(self, module: str) -> None:
        importlib.import_module(module)

    def sleep(self, seconds: float) -> float:
        began = time.time()
        time.sleep(seconds)
        return began


def one_job_on_a_fresh_actor(seconds: float, module: str, **options: Any) -> tuple[float, float]:
    """Make an actor, have it sleep, kill it. Returns when the job began and when all was over."""
    actor: Any = ray.remote(_Loaded).options(**options).remote(module)
    began: float = ray.get(actor.sleep.remote(seconds))
    ray.kill(actor)
    return began, time.time()


# ------------------------------------------------------------ on a cluster of pods


def join_cluster() -> None:
    """Become a driver of the cluster that this process stands in."""
    ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)


def nodes_with(labels: Mapping[str, str]) -> int:
    """Living Ray nodes with all of these labels."""
    return sum(
        node["Alive"] and labels.items() <= (node.get("Labels") or {}).items()
        for node in ray.nodes()  # type: ignore[no-untyped-call]
    )


def fresh_lane_s(gpus: float, cpus: float, labels: Mapping[str, str]) -> float:
    """A placement group and an actor in it, to that actor's first instruction. Seconds."""
    began = time.time()
    group = placement_group([{"GPU": gpus, "CPU": cpus}], bundle_label_selector=[dict(labels)])
    actor = start_actor(
        Bare,
        num_gpus=gpus,
        num_cpus=cpus,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
    )
    took_s: float = call(actor, "now") - began
    ray.kill(actor)
    remove_placement_group(group)
    return took_s
