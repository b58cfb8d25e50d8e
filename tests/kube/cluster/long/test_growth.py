"""Capacity that does not come, and what an idle pool asks of the API server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.kube.bed import Bed
from tests.kube.cluster.standing import StandingPool, settings, standing

NODES = "cpu-a:cpu=16,mem=32;gpu-a:cpu=8,mem=32,gpu=1"
NO_GPU = "Insufficient nvidia.com/gpu"
MINUTE_S = 60.0


@pytest.fixture(scope="module")
def pool(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingPool]:
    config = settings(
        gpu={"max_lanes": 2, "grow_deadline_s": 12.0, "keep_alive": "always", "standbys": 0},
        breaker_failures=1,
        breaker_open_s=5.0,
    )
    with standing(bed, tmp_path_factory.mktemp("pool"), config) as pool:
        yield pool


def test_waiting_jobs_are_told_why_no_pod_comes(pool: StandingPool) -> None:
    """One lane finds its pod, a second one never does: another caller waits for the first."""
    holder = pool.load(seconds=0, job_s=25)
    pool.busy_pod()
    waiting = pool.load(seconds=0, job_s=0.1, options={"caller": "late"})

    def told() -> list[str]:
        return [row["reason"] for row in pool.status()["waiting"] if NO_GPU in row["reason"]]

    reasons = pool.bed.wait_for(told, 60, "reason in Kubernetes' own words")
    assert "waits for its node" in reasons[0]
    (lane,) = [row for row in pool.status()["lanes"] if row["state"] == "growing"] or [None]
    assert lane is None or NO_GPU in lane["detail"]
    assert [row["outcome"] for row in holder.finish() + waiting.finish()] == ["ok", "ok"]


def test_a_profile_nobody_can_carry_fails_its_jobs_with_the_reason(pool: StandingPool) -> None:
    running = [pod for pod in pool.status()["kubernetes"]["pods"] if pod["group"] == "gpu"]
    (carrier,) = [pod["name"] for pod in running if pod["ready"]]
    pool.bed.core.patch_node("gpu-a", {"spec": {"unschedulable": True}})
    try:
        pool.bed.faults.kill_pod(carrier)
        (job,) = pool.jobs()
        assert job["outcome"] == "StartFailed"
        assert "Kubernetes: 0/" in job["why"]
        assert "nodes are available" in job["why"]
    finally:
        pool.bed.core.patch_node("gpu-a", {"spec": {"unschedulable": False}})
    time.sleep(6)  # the breaker lets one try pass
    assert pool.jobs()[0]["outcome"] == "ok"


def test_an_idle_pool_hardly_asks_the_api_server(pool: StandingPool) -> None:
    pool.bed.wait_for(lambda: pool.worker_pods(), 60, "pod with a lane")
    began = pool.bed.audit.now()
    time.sleep(MINUTE_S)
    ours = [row for row in pool.bed.audit.requests(began, agent="firepool/")]
    print(f"api_requests_per_minute {len(ours)}")
    assert 1 <= len(ours) <= 10
