"""Drill 5: one lane, a job that depends on a job, lost replies, a killed client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import firepool_ray as fp
from tests import jobs
from tests.conftest import (
    KEPT,
    LOSES_REPLIES,
    PATIENCE_S,
    driver,
    eventually,
    is_gone,
    output_of,
    pool_of,
)

LOSSY = """
import sys
import ray, firepool_ray as fp

def first(path, k):
    with open(path, "a") as file:
        file.write(f"first{k}\\n")
    return k

def second(path, k):
    with open(path, "a") as file:
        file.write(f"second{k}\\n")
    return k + 1000

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
nested = fp.options(caller="nested")
lost = {"first": 0, "second": 0}
for k in range(100):
    f = nested.submit(first, sys.argv[2], k)
    g = nested.submit(second, sys.argv[2], f.ref)
    assert g.result(timeout_s=150) == k + 1000
    lost["first"] += bool(f._trail.loss)
    lost["second"] += bool(g._trail.loss)
    if min(lost.values()) >= 2:
        break
print(k + 1, lost["first"], lost["second"])
fp.shutdown()
"""

DIES = """
import sys
import ray, firepool_ray as fp
sys.path.insert(0, sys.argv[3])
from tests import jobs

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
nested = fp.options(caller="nested")
f = nested.submit(jobs.start_session_and_sleep, sys.argv[2], 600)
g = nested.submit(jobs.mark, sys.argv[2], f.ref)
g.result()
"""

SETTINGS = {
    "profiles": {
        "gpu": {
            **KEPT,
            "gpus": 1,
            "cpus": 0,
            "max_lanes": 1,
        }
    },
    "window_s": 0.5,
}


@pytest.fixture(scope="module", autouse=True)
def pool() -> Iterator[Any]:
    with pool_of(SETTINGS, num_gpus=1) as controller:
        yield controller


def address() -> str:
    return str(ray.get_runtime_context().gcs_address)


def test_a_chain_of_jobs_on_one_lane_outlives_lost_replies(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    ran, *lost = map(int, output_of(driver(LOSSY, address(), marks, **LOSES_REPLIES)).split())
    assert min(lost) >= 2, "no replies were lost"
    assert marks.read_text().split() == [
        f"{job}{k}" for k in range(ran) for job in ("first", "second")
    ], "a job ran more than once, or not at all, or in the wrong order"


def test_the_lease_of_a_client_that_is_killed_in_a_job_comes_back(
    pool: Any, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    doomed = driver(DIES, address(), started, Path(__file__).parents[2])
    child = int(eventually(lambda: started.exists() and started.read_text()))
    doomed.kill()
    doomed.communicate()
    after = fp.options(caller="after").submit(jobs.pid)
    assert after.result(timeout_s=PATIENCE_S) > 0
    eventually(lambda: is_gone(child))
    assert started.read_text().split() == [str(child)], "the dependent job ran"
    (queue,) = ray.get(pool.describe.remote())["queues"]
    assert queue["held"] == 1.0, "the dead client's lease is still charged"
