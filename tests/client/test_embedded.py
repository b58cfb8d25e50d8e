"""Pools that nobody started by hand: the embedded default, its end, and clusters that are gone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import ray
from ray.util.state import list_actors, list_tasks

import firepool_ray as fp
from firepool_ray.config import PoolConfig
from firepool_ray.errors import ImpossibleRequest
from firepool_ray.runtime import pool as pools
from tests import jobs
from tests.conftest import KEPT, PATIENCE_S, driver, eventually, local_ray, output_of

DEFAULT = """
import os, tempfile
os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="fp")
import firepool_ray as fp
print(fp.submit(lambda: 6 * 7).result())
print(sorted(row["profile"] for row in fp.status()["profiles"]))
fp.shutdown()
import ray
print(ray.is_initialized())
"""

NO_CLUSTER = """
import firepool_ray as fp
from firepool_ray.errors import PoolUnavailable
try:
    fp.submit(len, "x")
except PoolUnavailable as error:
    print("PoolUnavailable", "RAY_ADDRESS" in str(error))
"""

SETTINGS: dict[str, Any] = {
    "profiles": {"cpu": {**KEPT, "cpus": 0.25, "max_lanes": 1}},
    "queues": {"none": {"limit_gpus": 0}},
    "client_linger_s": 1.0,
}


def test_submit_alone_starts_a_local_ray_and_a_pool_and_says_so_in_one_line() -> None:
    process = driver(DEFAULT, RAY_ADDRESS="local")
    out, err = process.communicate(timeout=3 * PATIENCE_S)
    assert process.returncode == 0, err
    assert out.split("\n")[:3] == ["42", "['cpu']", "False"]
    said = [line for line in err.splitlines() if line.startswith("firepool: started")]
    assert len(said) == 1 and "a local Ray and an embedded pool" in said[0]


def test_a_cluster_that_is_gone_is_a_clear_error() -> None:
    assert output_of(driver(NO_CLUSTER, RAY_ADDRESS="127.0.0.1:1")).split() == [
        "PoolUnavailable",
        "True",
    ]


def test_an_embedded_pool_shared_by_racing_callers_told_by_ray_and_gone_with_its_clients() -> None:
    with local_ray(num_cpus=4, dashboard=True):
        config = PoolConfig.from_dict(SETTINGS)
        handles: list[Any] = []

        def start() -> None:
            handles.append(pools.start_pool(config, embedded=True))

        threads = [threading.Thread(target=start) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({handle._actor_id for handle in handles}) == 1 and len(handles) == 6

        fp.start()
        job = fp.options(caller="told").submit(jobs.pid)
        job.result(timeout_s=PATIENCE_S)
        info = job.info()
        units = fp.status()["units"]
        assert units["reserved"] == units["held"] == 1.0
        with pytest.raises(ImpossibleRequest):
            fp.options(queue="none").submit(jobs.pid).result(timeout_s=PATIENCE_S)

        def told() -> bool:
            actors = {row.name for row in list_actors(filters=[("state", "=", "ALIVE")])}
            tasks = {row.name for row in list_tasks(limit=1000)}
            worker = any(
                name.startswith(f"firepool/cpu/{info.lane}/") and name.endswith(info.worker)
                for name in actors
            )
            task = f"{info.name}[default/told]{info.source}"
            return worker and "firepool-controller" in actors and task in tasks

        eventually(told)
        assert pools.find_pool() is not None
        fp.shutdown()
        eventually(lambda: pools.find_pool() is None)
        groups = ray.util.placement_group_table().values()
        assert {row["state"] for row in groups} == {"REMOVED"}
