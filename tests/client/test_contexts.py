"""Where a submit may come from: tasks, actors, jobs, threads, forks, Ray Client; and what ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import ray

import firepool_ray as fp
from firepool_ray.errors import JobCancelled

pytestmark = pytest.mark.usefixtures("pool")

WAIT_S = 60
ROOT = Path(__file__).parents[2]


def add(a, b=0):
    return a + b


def slow_mark(path):
    time.sleep(0.25)
    with open(path, "a") as file:
        file.write("x")


def run_script(script: str, *args: str, timeout_s: float = 120) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_from_a_ray_task():
    @ray.remote
    def task(n):
        import firepool_ray

        return firepool_ray.submit(lambda x: x + 1, n).result(WAIT_S)

    assert ray.get([task.remote(n) for n in range(4)], timeout=WAIT_S) == [1, 2, 3, 4]


def test_from_sync_and_async_actors():
    @ray.remote
    class Sync:
        def ask(self, n):
            import firepool_ray

            return firepool_ray.submit(lambda x: x + 1, n).result(WAIT_S)

    @ray.remote
    class Async:
        async def ask(self, n):
            import firepool_ray

            jobs = [firepool_ray.submit(lambda x: x + 1, n + i) for i in range(3)]
            return [await job for job in jobs]

    sync, async_ = Sync.remote(), Async.remote()
    assert ray.get(sync.ask.remote(1), timeout=WAIT_S) == 2
    answers = ray.get([async_.ask.remote(n) for n in range(5)], timeout=WAIT_S)
    assert answers == [[n + 1, n + 2, n + 3] for n in range(5)]


def test_from_a_job_which_hands_its_caller_on():
    def parent():
        import firepool_ray

        child = firepool_ray.submit(os.getpid)
        return os.getpid(), child.result(WAIT_S), child.info().caller

    own, childs, caller = fp.options(caller="family").submit(parent).result(WAIT_S)
    assert own != childs and caller == "default/family"


def test_children_that_wait_are_cancelled_when_their_job_returns(tmp_path):
    mark = tmp_path / "ran"

    def parent(path):
        import firepool_ray

        for _ in range(40):
            firepool_ray.submit(slow_mark, path)
        return "done"

    assert fp.submit(parent, str(mark)).result(WAIT_S) == "done"
    time.sleep(3)
    assert not mark.exists() or len(mark.read_text()) < 12


def test_what_a_ray_task_left_waiting_is_cancelled(tmp_path):
    mark = tmp_path / "ran"

    @ray.remote(max_calls=0)
    def task(path):
        import firepool_ray

        for _ in range(60):
            firepool_ray.submit(slow_mark, path)

    ray.get(task.remote(str(mark)), timeout=WAIT_S)
    time.sleep(6)
    assert not mark.exists() or len(mark.read_text()) < 40


def test_a_second_driver_shares_the_pool():
    out = run_script(
        """
        import sys, ray, firepool_ray as fp
        ray.init(address=sys.argv[1], log_to_driver=False)
        print(fp.submit(lambda: 6 * 7).result(60), fp.status() is not None)
        """,
        ray.get_runtime_context().gcs_address,
    )
    assert out.split()[-2:] == ["42", "True"]
    assert fp.submit(add, 1).result(WAIT_S) == 1  # its end has not taken the pool with it


def test_a_fork_from_a_connected_process_is_told_so():
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            fp.submit(add, 1)
        except ValueError as error:
            status = 0 if "does not survive a fork" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert fp.submit(add, 1).result(WAIT_S) == 1


def test_the_controller_may_die_while_jobs_run_and_wait(tmp_path):
    gate = tmp_path / "gate"

    def hold(path):
        while not os.path.exists(path):
            time.sleep(0.01)
        return 1

    jobs = [fp.submit(hold, str(gate)) for _ in range(12)]
    while sum(job.info().state == "running" for job in jobs) < 2:
        time.sleep(0.02)
    controller = ray.get_actor("firepool-controller", namespace="firepool")
    _, pid = ray.get(controller.ping.remote(), timeout=WAIT_S)
    os.kill(pid, signal.SIGKILL)
    more = [fp.submit(add, n) for n in range(20)]
    gate.touch()
    assert [job.result(WAIT_S) for job in jobs] == [1] * 12
    assert [job.result(WAIT_S) for job in more] == list(range(20))


def test_a_killed_clients_jobs_are_stopped_and_its_workers_come_back(tmp_path):
    script = """
    import sys, time, ray, firepool_ray as fp
    ray.init(address=sys.argv[1], log_to_driver=False)
    jobs = [fp.submit(time.sleep, 600) for _ in range(8)]
    while sum(job.info().state == "running" for job in jobs) < 4:
        time.sleep(0.02)
    print("running", flush=True)
    time.sleep(600)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), ray.get_runtime_context().gcs_address],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert any("running" in line for line in process.stdout)
        process.kill()
        process.wait()
        assert [fp.submit(add, n).result(WAIT_S) for n in range(4)] == list(range(4))
    finally:
        process.kill()


def test_jobs_end_as_unavailable_or_cancelled_once_the_pool_is_gone(tmp_path):
    """Last: it takes the pool away."""
    gate = tmp_path / "gate"

    def hold(path):
        while not os.path.exists(path):
            time.sleep(0.01)

    [fp.submit(hold, str(gate)) for _ in range(8)]
    queued = fp.submit(add, 1)
    fp.shutdown()
    with pytest.raises(JobCancelled):
        queued.result(WAIT_S)

    async def ask():
        return await queued

    with pytest.raises(JobCancelled):
        asyncio.run(ask())
