"""Failure promises, seen by the submitter: processes that die, and replies that are lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import firepool_ray as fp
from firepool_ray.errors import JobTimeout, StartFailed, WorkerLost
from firepool_ray.runtime.protocol import NAMESPACE, warden_actor_name
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

SETTINGS = {
    "profiles": {
        "cpu": {"cpus": 0.5, "max_lanes": 2, **KEPT},
        "single": {"cpus": 0.5, "max_lanes": 1, **KEPT},
        "broken": {"cpus": 0.1, "max_lanes": 1, "preload": ["no_such_module"]},
        "slow": {"cpus": 0.1, "max_lanes": 1, "start_deadline_s": 0.01},
    },
    "window_s": 0.5,
    "start_backoff_s": 0.05,
    "start_backoff_max_s": 0.1,
    "breaker_failures": 3,
    "refill_rate_per_s": 20.0,
}


@pytest.fixture(scope="module", autouse=True)
def pool() -> Iterator[Any]:
    with pool_of(SETTINGS, num_cpus=4, num_gpus=0) as controller:
        yield controller


def address() -> str:
    return str(ray.get_runtime_context().gcs_address)


def warden() -> Any:
    node = ray.get_runtime_context().get_node_id()
    return ray.get_actor(warden_actor_name(node), namespace=NAMESPACE)


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def warm_pid(**options: Any) -> int:
    pid = fp.options(**options).submit(jobs.pid).result(timeout_s=PATIENCE_S)
    assert isinstance(pid, int)
    return pid


# ---------------------------------------------------------------- a worker dies


def test_a_worker_that_dies_in_a_job_is_not_retried_by_itself(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    job = fp.options(caller="lost").submit(jobs.die, str(marks))
    with pytest.raises(WorkerLost) as caught:
        job.result(timeout_s=PATIENCE_S)
    assert caught.value.started is True
    assert "the process " in str(caught.value)  # ended, exited or was killed: the warden's words
    assert len(lines(marks)) == 1
    with pytest.raises(ray.exceptions.RayError):
        ray.get(job.ref)
    assert warm_pid(caller="lost") > 0


def test_a_worker_that_dies_in_a_job_is_retried_as_often_as_asked(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    retried = fp.options(caller="retry", max_retries=1)
    assert retried.submit(jobs.die_unless_marked, str(marks)).result(timeout_s=PATIENCE_S) > 0
    assert len(lines(marks)) == 2
    always = tmp_path / "always"
    with pytest.raises(WorkerLost) as caught:
        retried.submit(jobs.die, str(always)).result(timeout_s=PATIENCE_S)
    assert caught.value.started is True
    assert len(lines(always)) == 2


def test_a_job_on_a_worker_that_dies_before_it_starts_is_run_elsewhere(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    worker = warm_pid(caller="early")
    os.kill(worker, signal.SIGSTOP)
    job = fp.options(caller="early").submit(jobs.mark, str(marks))
    eventually(lambda: job.info().worker)
    os.kill(worker, signal.SIGKILL)
    assert job.result(timeout_s=PATIENCE_S) is None
    assert len(lines(marks)) == 1


def test_what_a_dead_worker_left_behind_is_swept(tmp_path: Path) -> None:
    child, daemon = tmp_path / "child", tmp_path / "daemon"
    fp.options(caller="sweep").submit(jobs.start_session, str(child)).result(timeout_s=PATIENCE_S)
    with pytest.raises(WorkerLost):
        fp.options(caller="sweep").submit(jobs.start_daemon_and_die, str(daemon)).result(
            timeout_s=PATIENCE_S
        )
    for path in (child, daemon):
        eventually(lambda path=path: is_gone(int(lines(path)[0])))


# ---------------------------------------------------------------- nobody can tell


def test_without_worker_and_warden_nobody_can_tell_whether_a_job_ran(tmp_path: Path) -> None:
    started = tmp_path / "started"
    job = fp.options(caller="unknown").submit(jobs.mark_and_sleep, str(started), 600)
    worker = int(eventually(lambda: lines(started))[0])
    ray.kill(warden(), no_restart=True)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(WorkerLost) as caught:
        job.result(timeout_s=PATIENCE_S)
    assert caught.value.started is None
    assert warm_pid(caller="unknown") != worker


# ---------------------------------------------------------------- a warden dies


def test_a_warden_that_dies_changes_nothing_for_jobs(pool: Any, tmp_path: Path) -> None:
    worker = warm_pid(caller="warden")
    node = ray.get_runtime_context().get_node_id()
    generation = 1 if _exists(warden_actor_name(node, 1)) else 0
    helper = ray.get_actor(warden_actor_name(node, generation), namespace=NAMESPACE)
    _, pid = ray.get(helper.ping.remote())
    running = fp.options(caller="warden").submit(
        jobs.mark_and_sleep, str(tmp_path / "started"), 2.0
    )
    late = fp.options(caller="warden", timeout_s=3.0).submit(
        jobs.start_session_and_sleep, str(tmp_path / "child"), 600
    )
    eventually(lambda: lines(tmp_path / "started"))
    os.kill(pid, signal.SIGKILL)
    assert running.result(timeout_s=PATIENCE_S) == worker
    with pytest.raises(JobTimeout):  # kept by its successor
        late.result(timeout_s=PATIENCE_S)
    eventually(lambda: is_gone(int(lines(tmp_path / "child")[0])))
    assert warm_pid(caller="warden") > 0


def _exists(name: str) -> bool:
    try:
        ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------- the controller dies


def test_a_controller_that_dies_is_back_and_loses_nothing(pool: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    single = fp.options(profile="single", caller="survivor")
    worker = single.submit(jobs.pid).result(timeout_s=PATIENCE_S)
    running = single.submit(jobs.mark_and_sleep, str(started), 1.0)
    waiting = [single.submit(jobs.pid) for _ in range(20)]
    eventually(lambda: lines(started))
    epoch, pid = ray.get(pool.ping.remote())
    os.kill(pid, signal.SIGKILL)
    assert running.result(timeout_s=PATIENCE_S) == worker
    assert {job.result(timeout_s=PATIENCE_S) for job in waiting} == {worker}
    assert eventually(lambda: _epoch(pool)) > epoch
    assert warm_pid(profile="single", caller="other") != worker


def _epoch(pool: Any) -> int:
    try:
        return int(ray.get(pool.ping.remote())[0])
    except ray.exceptions.RayError:
        return 0


def test_a_controller_that_dies_again_and_again_hands_workers_on(pool: Any) -> None:
    seen = set()
    for _ in range(3):
        seen.add(warm_pid(profile="single", caller="steady"))
        epoch = eventually(lambda: _epoch(pool))
        os.kill(ray.get(pool.ping.remote())[1], signal.SIGKILL)
        eventually(lambda epoch=epoch: _epoch(pool) > epoch)
    seen.add(warm_pid(profile="single", caller="steady"))
    assert len(seen) == 1, "a worker was lost with a controller"


# ---------------------------------------------------------------- a client dies

CLIENT = """
import sys, time
import ray, firepool_ray as fp

def hang(path):
    import os, subprocess
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with open(path, "a") as file:
        file.write(f"{os.getpid()} {child.pid}\\n")
    time.sleep(600)

def never(path):
    open(path, "w").close()

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
single = fp.options(profile="single", caller="shared")
running = single.submit(hang, sys.argv[2])
waiting = [single.submit(never, sys.argv[3]) for _ in range(5)]
running.result()
"""


def test_a_client_that_dies_takes_its_jobs_along_and_leaves_its_workers(tmp_path: Path) -> None:
    started, never = tmp_path / "started", tmp_path / "never"
    client = driver(CLIENT, address(), started, never)
    eventually(lambda: len(lines(started)) == 2)
    worker, child = map(int, lines(started))
    sibling = fp.options(profile="single", caller="shared").submit(jobs.pid)
    client.kill()
    client.communicate()
    assert sibling.result(timeout_s=PATIENCE_S) == worker, "the caller's own worker was not kept"
    eventually(lambda: is_gone(child))
    assert not never.exists()


def test_a_client_that_dies_leaves_nothing_to_strangers(tmp_path: Path) -> None:
    started, never = tmp_path / "started", tmp_path / "never"
    fp.options(profile="single", caller="shared").submit(jobs.pid).result(timeout_s=PATIENCE_S)
    client = driver(CLIENT.replace('"shared"', '"alone"'), address(), started, never)
    eventually(lambda: len(lines(started)) == 2)
    worker, child = map(int, lines(started))
    client.kill()
    client.communicate()
    assert warm_pid(profile="single", caller="stranger") != worker
    eventually(lambda: is_gone(worker) and is_gone(child))
    assert not never.exists()


@ray.remote(num_cpus=0)
class Hangs:
    def hang(self) -> None:
        time.sleep(600)


def test_a_tether_whose_connection_breaks_is_no_dead_client(pool: Any, tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    job = fp.options(profile="single", caller="tied").submit(
        jobs.mark_and_wait, str(started), str(go)
    )
    eventually(lambda: lines(started))
    (client,) = [c["client"] for c in fp.status()["clients"] if c["pid"] == os.getpid()]
    actor = Hangs.remote()
    broken = actor.hang.remote()
    ray.kill(actor)
    ray.get(pool.watch_client.remote(client, [broken]))
    go.touch()
    assert job.result(timeout_s=PATIENCE_S) == int(lines(started)[0])


# ---------------------------------------------------------------- a reply is lost

LOSSY = """
import json, sys
import ray, firepool_ray as fp

def job(path, k):
    with open(path, "a") as file:
        file.write(f"{k}\\n")
    return k

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
lossy = fp.options(profile="single", caller="lossy")
lost = 0
for k in range(100):
    submitted = lossy.submit(job, sys.argv[2], k)
    assert submitted.result(timeout_s=120) == k
    assert ray.get(submitted.ref, timeout=60) == k
    lost += bool(submitted._trail.loss)
    if lost == 3:
        break
print(k + 1, lost)
fp.shutdown()
"""


def test_a_lost_reply_is_fetched_again_and_the_job_runs_once(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    client = driver(LOSSY, address(), marks, **LOSES_REPLIES)
    ran, lost = map(int, output_of(client).split())
    assert lost == 3, "no reply was lost"
    assert lines(marks) == [str(k) for k in range(ran)]


# ---------------------------------------------------------------- a worker never starts


def test_workers_that_cannot_start_open_the_breaker_which_says_why() -> None:
    with pytest.raises(StartFailed, match="no_such_module"):
        fp.options(profile="broken").submit(jobs.pid).result(timeout_s=PATIENCE_S)
    again = fp.options(profile="broken").submit(jobs.pid)
    with pytest.raises(StartFailed, match="no_such_module"):
        again.result(timeout_s=PATIENCE_S)
    profile = next(p for p in fp.status()["profiles"] if p["profile"] == "broken")
    assert "no_such_module" in str(profile)
    assert warm_pid(caller="unharmed") > 0


def test_workers_that_miss_their_start_deadline_open_the_breaker() -> None:
    with pytest.raises(StartFailed, match="start_deadline_s"):
        fp.options(profile="slow").submit(jobs.pid).result(timeout_s=PATIENCE_S)
