"""Trainers on the pool of an existing RayCluster: `ray job submit`, and RayJobs of two teams."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from firepool_ray.kube.api import RAY_JOB
from tests.kube.bed import Bed
from tests.kube.cluster.standing import LOAD, NAME, StandingPool, settings, standing

#: Whole outages fit into this on a machine that has much else to do.
pytestmark = pytest.mark.timeout(560)
NODES = "cpu-a:cpu=16,mem=48;gpu-a:cpu=8,mem=32,gpu=3"
PATIENCE_S = 250.0
RL_ROLLOUTS = Path(__file__).parents[4] / "examples" / "rl_rollouts"
TRAIN = "python train.py --compare 0"
LEARNED = "\nLearned: "


@pytest.fixture(scope="module")
def pool(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandingPool]:
    """The example's queues, and one of another team."""
    queues = {"rl": {"quota_gpus": 1}, "eval": {"quota_gpus": 1}, "team-b": {"quota_gpus": 1}}
    config = settings(
        gpu={"max_lanes": 3, "standbys": 1, "preload": ["numpy"]},
        kubernetes={"drivers": {"max_pods": 3}},
        queues=queues,
        window_s=1,
    )
    with standing(bed, tmp_path_factory.mktemp("pool"), config) as pool:
        yield pool


class RayJob:
    """Applied as ``firepool kube render --rayjob`` prints it."""

    def __init__(self, pool: StandingPool, name: str, entrypoint: str, *options: str) -> None:
        self._pool, self._name = pool, name
        job = ["--rayjob", entrypoint, "--name", name, *options]
        pool.bed.apply(
            [yaml.safe_load(pool.firepool("kube", "render", "-f", str(pool.file), *job))]
        )

    def finish(self) -> str:
        """What its driver printed, once it has ended well."""
        bed = self._pool.bed

        def ended() -> dict[str, Any] | None:
            job = bed.custom.get_namespaced_custom_object(
                "ray.io", "v1", "default", RAY_JOB.plural, self._name
            )
            said: dict[str, Any] = job.get("status", {})
            return said if said.get("jobDeploymentStatus") in ("Complete", "Failed") else None

        said = bed.wait_for(ended, PATIENCE_S, f"end of RayJob {self._name}")
        (submitter,) = bed.pods(f"batch.kubernetes.io/job-name={self._name}")
        log = bed.pod_log(submitter.metadata.name)
        assert said is not None and said["jobStatus"] == "SUCCEEDED", f"{said}\n{log}"
        return log


def submit(bed: Bed) -> subprocess.Popen[str]:
    """`ray job submit`, from outside of all pods, to the head's dashboard."""
    ray = Path(sys.executable).with_name("ray")
    options = ["--working-dir", str(RL_ROLLOUTS), "--entrypoint-resources", '{"firepool_driver":1}']
    return subprocess.Popen(
        [ray, "job", "submit", *options, "--", *shlex.split(TRAIN)],
        env={**os.environ, "RAY_ADDRESS": f"http://{bed.head_address(NAME)}:8265"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_trainers_of_two_teams_share_the_pool(pool: StandingPool) -> None:
    stop = pool.bed.directory / "stop"
    asked = {"seconds": 400, "until": str(stop), "job_s": 0.2, "options": {"queue": "team-b"}}
    other = RayJob(pool, "team-b", f"python {LOAD} {shlex.quote(json.dumps(asked))}")
    train = RayJob(pool, "train", TRAIN, "--working-dir", str(RL_ROLLOUTS))
    submitted = submit(pool.bed)

    def held() -> dict[str, float] | None:
        units = {row["queue"]: row["held"] for row in pool.status()["queues"]}
        return units if units["rl"] and units["team-b"] else None

    units = pool.bed.wait_for(held, 120, "both teams at work")
    assert units is not None and sum(units.values()) <= 3
    explained = pool.explain("team-b/c0")
    assert {row["caller"] for row in explained["records"]} == {"team-b/c0"}

    said, _ = submitted.communicate(timeout=PATIENCE_S)
    assert submitted.returncode == 0 and LEARNED in said, said
    assert LEARNED in train.finish()
    stop.touch()
    *rows, last = [json.loads(x) for x in other.finish().splitlines() if x.startswith("{")]
    assert last == {"done": len(rows)}
    assert {row["outcome"] for row in rows} == {"ok"}
