"""Failure promises, seen by the submitter: nodes that die or are drained.

``Cluster`` runs several raylets on this machine, each as a node of its own.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.ray_constants import PROCESS_TYPE_RAYLET
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

import firepool_ray as fp
from firepool_ray.config import PoolConfig
from firepool_ray.errors import WorkerLost
from firepool_ray.runtime import pool as pools
from tests import jobs
from tests.conftest import KEPT, PATIENCE_S, eventually, eventually_none, is_gone, processes_of

SETTINGS = {
    # Lanes lie on the nodes with seats only, never beside the controller.
    "profiles": {
        "pod": {
            **KEPT,
            "cpus": 0.5,
            "resources": {"seat": 1},
            "max_lanes": 2,
        }
    },
    "window_s": 0.5,
}


class Pods:
    """A head with the controller, and pods that come and go."""

    def __init__(self, folder: str) -> None:
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "temp_dir": folder,
                "include_dashboard": False,
                "object_store_memory": 200_000_000,
            },
        )

    def fill(self) -> None:
        """Have two pods that take lanes."""
        missing = 2 - len(self.cluster.worker_nodes)
        for _ in range(missing):
            self.cluster.add_node(
                wait=False, num_cpus=1, resources={"seat": 1}, object_store_memory=100_000_000
            )
        self.cluster.wait_for_nodes(timeout=120)

    def kill(self, pod: Any) -> None:
        """As if the machine were switched off: nothing on it gets to say goodbye."""
        self.cluster.remove_node(pod, allow_graceful=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Pods]:
    folder = tempfile.mkdtemp(prefix="fp")
    made = Pods(folder)
    made.fill()
    ray.init(address=made.cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        handle = pools.start_pool(PoolConfig.from_dict(SETTINGS))
        fp.start()
        yield made
        fp.shutdown()
        pools.stop_pool(handle)
    finally:
        ray.shutdown()
        made.cluster.shutdown()
        left = eventually_none(lambda: processes_of(folder))
        shutil.rmtree(folder, ignore_errors=True)
        assert not left, f"left behind: {left}"


@pytest.fixture
def pods(cluster: Pods) -> Pods:
    cluster.fill()
    return cluster


def pod_of(pods: Pods, node_id: str) -> Any:
    return next(pod for pod in pods.cluster.worker_nodes if pod.node_id == node_id)


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def lanes_on(node_id: str) -> list[str]:
    """Names of placement groups that Ray still knows there, reserved or waiting for a place."""
    return [
        row["name"]
        for row in placement_group_table().values()
        if row["state"] != "REMOVED" and node_id in row["bundles_to_node_id"].values()
    ]


def test_a_node_that_dies_loses_its_jobs_and_nothing_else(pods: Pods, tmp_path: Path) -> None:
    doomed = fp.options(caller="a").submit(jobs.mark_and_sleep, str(tmp_path / "doomed"), 600)
    eventually(lambda: lines(tmp_path / "doomed"))
    go = tmp_path / "go"
    safe = fp.options(caller="b").submit(jobs.mark_and_wait, str(tmp_path / "safe"), str(go))
    eventually(lambda: lines(tmp_path / "safe"))
    node, other = doomed.info().node, safe.info().node
    assert node != other

    pods.kill(pod_of(pods, node))
    with pytest.raises(WorkerLost):
        doomed.result(timeout_s=PATIENCE_S)
    eventually(lambda: not lanes_on(node))
    go.touch()
    assert safe.result(timeout_s=PATIENCE_S) == int(lines(tmp_path / "safe")[0])
    eventually(lambda: is_gone(int(lines(tmp_path / "doomed")[0])))
    moved = fp.options(caller="a").submit(jobs.pid)
    assert moved.result(timeout_s=PATIENCE_S) > 0
    assert moved.info().node == other
    assert node not in [lane["node"] for lane in fp.status()["lanes"]]


def test_a_retried_job_runs_again_elsewhere_and_lost_values_are_clear_errors(
    pods: Pods, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    big = fp.options(caller="a").submit(bytes, 1_000_000)
    eventually(big.done)
    go = tmp_path / "go"
    job = fp.options(caller="a", max_retries=1).submit(jobs.mark_and_wait, str(marks), str(go))
    eventually(lambda: lines(marks))
    node = job.info().node
    assert big.info().node == node
    pods.kill(pod_of(pods, node))
    eventually(lambda: len(lines(marks)) == 2)
    go.touch()
    assert job.result(timeout_s=PATIENCE_S) == int(lines(marks)[1])
    assert job.info().node != node

    with pytest.raises(WorkerLost):
        big.result(timeout_s=PATIENCE_S)
    user = fp.submit(jobs.accept, big.ref)
    error = user.exception(timeout_s=PATIENCE_S)
    assert isinstance(error, (ray.exceptions.ObjectLostError, ray.exceptions.RayActorError))
    assert fp.submit(jobs.pid).result(timeout_s=PATIENCE_S) > 0


def test_a_node_whose_raylet_died_takes_no_more_although_its_processes_linger(pods: Pods) -> None:
    """The warden sees the end of its raylet at once; Ray's processes there follow one by one."""
    assert fp.options(caller="a").submit(jobs.pid).result(timeout_s=PATIENCE_S) > 0
    lane = eventually(lambda: next((row for row in fp.status()["lanes"] if idle_in(row)), None))
    node, (worker,) = lane["node"], idle_in(lane)
    os.kill(raylet_of(pods, node), signal.SIGKILL)
    gone = eventually(lambda: [r for r in fp.status()["let_go"] if r["worker"] == worker])
    # Neither Ray's verdict (half a minute) nor silence (ten seconds) was waited for.
    assert gone[0]["why"] == f"the raylet of node {node[:12]} has ended"
    eventually(lambda: lane["lane"] not in {row["lane"] for row in fp.status()["lanes"]})
    moved = fp.options(caller="a").submit(jobs.pid)
    assert moved.result(timeout_s=PATIENCE_S) > 0
    assert moved.info().node != node
    pods.kill(pod_of(pods, node))


def idle_in(lane: dict[str, Any]) -> list[str]:
    return [worker["worker"] for worker in lane["workers"] if worker["state"] == "idle"]


def raylet_of(pods: Pods, node_id: str) -> int:
    infos = pod_of(pods, node_id).all_processes[PROCESS_TYPE_RAYLET]
    return int(infos[0].process.pid)


def test_a_draining_node_finishes_its_jobs_and_takes_no_more(pods: Pods, tmp_path: Path) -> None:
    started = tmp_path / "started"
    go = tmp_path / "go"
    running = fp.options(caller="a").submit(jobs.mark_and_wait, str(started), str(go))
    eventually(lambda: lines(started))
    node = running.info().node
    _drain(node, deadline_s=120.0)
    eventually(lambda: node in _draining())
    eventually(lambda: all(lane["node"] != node or _leaves(lane) for lane in fp.status()["lanes"]))
    meanwhile = fp.options(caller="a").submit(jobs.pid)
    assert meanwhile.result(timeout_s=PATIENCE_S) > 0
    assert meanwhile.info().node != node
    assert not running.done()
    go.touch()
    assert running.result(timeout_s=PATIENCE_S) == int(lines(started)[0])
    eventually(lambda: not lanes_on(node))
    eventually(lambda: is_gone(int(lines(started)[0])))


def _leaves(lane: dict[str, Any]) -> bool:
    return lane["state"] in ("draining", "retiring")


def _draining() -> set[str]:
    from firepool_ray.runtime.inspection import draining_nodes

    return draining_nodes()


def _drain(node: str, deadline_s: float) -> None:
    """What a cluster autoscaler does before a pod is preempted."""
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    client = GcsClient(address=ray.get_runtime_context().gcs_address)
    accepted, why = client.drain_node(
        node,
        autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
        "preempted by the test",
        int((time.time() + deadline_s) * 1000),
    )
    assert accepted, why
