"""The head goes, and Ray's state is in Redis: whatever runs on other pods hardly notices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kube.bed import Bed, redis
from tests.kube.cluster.standing import StandingPool, settings, standing

#: Whole outages fit into this on a machine that has much else to do.
pytestmark = pytest.mark.timeout(560)
NODES = "cpu-a:cpu=16,mem=32;gpu-a:cpu=8,mem=32,gpu=4"
#: A head's pod, its GCS and the nodes that come back to it: 27 s on a quiet machine.
HEAD_S = 150.0
#: Longer than that, so that this job runs before, during and after.
LONG_S = 50.0


@pytest.fixture(scope="module")
def pool(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingPool]:
    redis.fetch()
    kept = {"keep_alive": "fixed:300", "lane_keep_s": 300}
    config = settings(
        gpu={"max_lanes": 3, **kept},
        kubernetes={"redis": "managed"},
        default_profile="gpu",
    )
    config["profiles"]["cpu"] = {"max_lanes": 1, "pod": {"memory": "3Gi"}, **kept}
    with standing(bed, tmp_path_factory.mktemp("pool"), config) as pool:
        yield pool


def lose_head(pool: StandingPool) -> tuple[float, float]:
    """(when it was killed, when its successor was ready), as ``load`` tells the time."""
    before = pool.head()
    pool.bed.faults.kill_pod(before)
    killed = time.time()
    pool.bed.wait_for(lambda: pool.bed.pod(before) is None, HEAD_S, "end of the head")
    pool.bed.wait_head("pool", HEAD_S)
    return killed, time.time()


def lanes_of(pool: StandingPool) -> set[str]:
    return {lane["lane"] for lane in pool.status()["lanes"] if lane["state"] == "ready"}


def test_the_loss_of_the_head_interrupts_no_job_and_costs_no_warm_worker(
    pool: StandingPool,
) -> None:
    """Callers with short jobs, one with a long one, and ever new ones, all from the system pod."""
    system, stop = pool.system(), pool.bed.directory / "stop"
    long = pool.load(pod=system, seconds=0, job_s=LONG_S, options={"caller": "long"})
    asked = {"pod": system, "seconds": 400, "until": str(stop), "job_s": 0.3, "patience_s": 200}
    steady = pool.load(**asked, callers=2)
    fresh = pool.load(**asked, callers=0, fresh_s=0.5, options={"profile": "cpu"})
    pool.bed.wait_for(lambda: len(lanes_of(pool)) == 4, 120, "all lanes")
    before = lanes_of(pool)
    killed, back = lose_head(pool)
    (late,) = pool.jobs(pod=system, options={"caller": "late", "profile": "cpu"})
    stop.touch()
    rows, grants, (job,) = steady.finish(), fresh.finish(), long.finish()

    assert [row for row in [job, late, *rows, *grants] if row["outcome"] != "ok"] == []
    assert job["ended"] - LONG_S < killed < job["ended"]
    for name in ("c0", "c1"):
        mine = [row for row in rows if row["caller"] == name]
        assert mine[0]["ended"] < killed and mine[-1]["submitted"] > back
        assert len({row["worker"] for row in mine}) == 1
        assert {row["source"] for row in mine[1:]} == {"warm"}
    assert before <= lanes_of(pool)
    assert pool.status()["epoch"] == 1  # the controller was not interrupted either
    print(f"head_back_s {back - killed:.1f}")
    print(f"longest_warm_start_s {max(row['start_s'] for row in rows if row['ended'] > killed)}")
    _print_grants([row for row in grants if row["ended"] > killed], killed)


def _print_grants(grants: list[dict[str, Any]], killed: float) -> None:
    """Of workers to callers that had none, asked for while there was no head or later."""
    assert grants
    first = min(row["submitted"] + row["start_s"] for row in grants)
    print(f"first_new_grant_s {first - killed:.2f}")
    print(f"longest_new_grant_s {max(row['start_s'] for row in grants):.1f}")
