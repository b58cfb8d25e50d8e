"""What becomes of jobs and capacity when pods go, on purpose or not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.kube.bed import Bed
from tests.kube.cluster.standing import StandingPool, settings, since, standing

pytestmark = pytest.mark.timeout(560)

NODES = "cpu-a:cpu=16,mem=32;gpu-a:cpu=8,mem=32,gpu=4"
#: A warden that does not answer for 10 s is lost; the rest is room for a slow machine.
LOST_S = 25.0


@pytest.fixture(scope="module")
def pool(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingPool]:
    config = settings(gpu={"max_lanes": 2})
    with standing(bed, tmp_path_factory.mktemp("pool"), config) as pool:
        pool.jobs(callers=2)
        yield pool


def test_a_pod_deleted_under_load_fails_no_job(pool: StandingPool) -> None:
    stop = pool.bed.directory / "stop"
    load = pool.load(seconds=240, until=str(stop), callers=2, job_s=0.3)
    victim = pool.busy_pod()
    before = set(pool.worker_pods())
    began = time.monotonic()
    pool.bed.faults.delete_pod(victim)

    def takes_nothing_new() -> bool:
        lanes = [lane for lane in pool.status()["lanes"] if lane["pod"] == victim]
        return all(lane["state"] != "ready" for lane in lanes)

    pool.bed.wait_for(takes_nothing_new, 10, "draining lane")
    pool.bed.wait_for(lambda: pool.bed.pod(victim) is None, 30, f"end of pod {victim}")
    assert since(began) < 20  # freed, it goes before its grace of 25 s is over

    def replaced() -> bool:
        lanes = pool.status()["lanes"]
        return any(lane["pod"] not in before and lane["state"] == "ready" for lane in lanes)

    pool.bed.wait_for(replaced, 120, "replacement of the pod")
    time.sleep(5)
    stop.touch()
    jobs = load.finish()
    assert [row for row in jobs if row["outcome"] != "ok"] == []
    assert {row["pod"] for row in jobs} - before  # the replacement works


def test_a_job_beyond_the_grace_is_ended_and_told_why(pool: StandingPool) -> None:
    load = pool.load(seconds=0, job_s=60)
    victim = pool.busy_pod()
    began = time.monotonic()
    pool.bed.faults.evict(victim)
    (job,) = load.finish()
    assert since(began) < 20
    assert (job["outcome"], job["started_code"]) == ("WorkerLost", True)
    assert f"pod {victim} was deleted, and its grace of" in job["why"]


def test_a_killed_pod_loses_its_job_at_once_and_comes_back(pool: StandingPool) -> None:
    pool.settle()
    load = pool.load(seconds=0, job_s=60)
    victim = pool.busy_pod()
    began = time.monotonic()
    pool.bed.faults.kill_pod(victim)
    (job,) = load.finish()
    assert job["outcome"] == "WorkerLost"
    assert since(began) < LOST_S
    assert [row["outcome"] for row in pool.jobs(callers=2, width=1)] == ["ok", "ok"]
    assert since(began) < 90


def test_a_pod_whose_network_is_cut_is_given_up(pool: StandingPool) -> None:
    pool.settle()
    load = pool.load(seconds=0, job_s=60)
    victim = pool.busy_pod()
    began = time.monotonic()
    pool.bed.faults.cut_network(victim)
    (job,) = load.finish()
    assert job["outcome"] == "WorkerLost"
    assert since(began) < LOST_S + 10
    assert [row["outcome"] for row in pool.jobs(callers=2)] == ["ok", "ok"]


def test_a_lost_system_pod_brings_the_controller_back(pool: StandingPool) -> None:
    pool.settle()
    (victim,) = [
        found.metadata.name for found in pool.bed.pods("ray.io/cluster=pool,ray.io/group=system")
    ]
    load = pool.load(seconds=20, callers=2, job_s=0.3)
    pool.busy_pod()
    pool.bed.faults.kill_pod(victim)
    jobs = load.finish()
    assert [row for row in jobs if row["outcome"] != "ok"] == []
    assert pool.status()["epoch"] >= 2


def test_a_lost_head_is_said_and_the_pool_works_on_the_next(pool: StandingPool) -> None:
    """Without fault tolerance everything in Ray is gone: a clear error, then a new pool."""
    before = pool.head()
    began = time.monotonic()
    pool.bed.faults.kill_pod(before)
    pool.bed.wait_for(lambda: pool.bed.pod(before) is None, 60, "end of the head")

    def works() -> bool:
        done = pool.bed.exec(pool.head(), ["firepool", "status"], timeout_s=30)
        return done.returncode == 0

    pool.bed.wait_for(works, 240, "pool on the new head")
    assert [row["outcome"] for row in pool.jobs(callers=2)] == ["ok", "ok"]
    assert since(began) < 180
