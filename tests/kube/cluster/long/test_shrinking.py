"""Fewer pods, no group, another form: what ``firepool kube up`` changes below running jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.kube.bed import Bed
from tests.kube.cluster.standing import NAME, Load, StandingPool, settings, standing

#: Whole outages fit into this on a machine that has much else to do.
pytestmark = pytest.mark.timeout(560)
NODES = "cpu-a:cpu=16,mem=48;gpu-a:cpu=8,mem=32,gpu=4"
CPU = {"max_lanes": 1, "pod": {"memory": "3Gi"}, "keep_alive": "fixed:20", "lane_keep_s": 20}


@pytest.fixture(scope="module")
def pool(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingPool]:
    config = settings(gpu={"max_lanes": 4}, default_profile="gpu")
    config["profiles"]["cpu"] = CPU
    with standing(bed, tmp_path_factory.mktemp("pool"), config) as pool:
        yield pool


def up_again(pool: StandingPool, *options: str, **changes: Any) -> str:
    """What ``kube up`` says with another pool file."""
    config = yaml.safe_load(pool.file.read_text())
    for profile, keys in changes.items():
        if keys is None:
            del config["profiles"][profile]
        else:
            config["profiles"][profile].update(keys)
    pool.file.write_text(yaml.safe_dump(config))
    return pool.told("kube", "up", "-f", str(pool.file), "--timeout", "150", *options)


def begin(pool: StandingPool, name: str, **asked: Any) -> Load:
    stop = str(pool.bed.directory / name)
    return pool.load(seconds=300, until=stop, job_s=0.5, **asked)


def end(pool: StandingPool, name: str, load: Load) -> list[dict[str, Any]]:
    (pool.bed.directory / name).touch()
    return load.finish()


def bounds(pool: StandingPool) -> dict[str, int]:
    found = pool.bed.custom.get_namespaced_custom_object(
        "ray.io", "v1", "default", "rayclusters", NAME
    )
    assert "firepool/most-pods" not in found["metadata"].get("annotations", {})
    return {g["groupName"]: g["maxReplicas"] for g in found["spec"]["workerGroupSpecs"]}


def test_a_lower_maximum_drains_and_fails_no_job(pool: StandingPool) -> None:
    load = begin(pool, "lower", callers=4)
    pool.bed.wait_for(lambda: len(pool.worker_pods()) == 4, 90, "four pods")
    pool.settle()
    said = up_again(pool, gpu={"max_lanes": 2})
    assert "group gpu may keep 2 pods: " in said
    assert len(pool.worker_pods()) == 2
    assert bounds(pool)["gpu"] == 2
    jobs = end(pool, "lower", load)
    assert [row for row in jobs if row["outcome"] != "ok"] == []
    assert len({row["caller"] for row in jobs[-12:]}) == 4  # those that lost their pod go on
    assert len(pool.worker_pods()) == 2


def test_a_changed_form_is_told_and_rolled_below_running_jobs(pool: StandingPool) -> None:
    load = begin(pool, "roll", callers=2)
    pool.bed.wait_for(lambda: len(pool.worker_pods()) == 2, 90, "two pods")
    pool.settle()
    before = set(pool.worker_pods())
    said = up_again(pool, gpu={"pod": {"env": {"FORM": "new"}}})
    assert all(pod in said for pod in before) and "--roll" in said
    assert set(pool.worker_pods()) == before
    said = up_again(pool, "--roll")
    assert "still in their old form" not in said
    after = set(pool.worker_pods())
    assert after.isdisjoint(before)
    for pod in after:
        assert pool.bed.exec(pod, ["printenv", "FORM"]).stdout == "new\n"
    jobs = end(pool, "roll", load)
    assert [row for row in jobs if row["outcome"] != "ok"] == []


def test_a_group_that_is_taken_out_drains_and_goes(pool: StandingPool) -> None:
    job = pool.load(seconds=0, job_s=6, options={"profile": "cpu"})
    pool.bed.wait_for(lambda: pool.busy_workers("cpu"), 90, "running job")
    said = up_again(pool, cpu=None)
    assert "group cpu may keep 0 pods: " in said
    assert pool.bed.pods(f"ray.io/cluster={NAME},ray.io/group=cpu") == []
    assert "cpu" not in bounds(pool)
    assert [row["outcome"] for row in job.finish()] == ["ok"]
    assert [row["outcome"] for row in pool.jobs()] == ["ok"]
