"""From where a pool can be used, and what may travel: whole processes, as users write them.

What tasks, actors, jobs and forks see of a pool is in ``test_contexts``.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import firepool_ray as fp
from firepool_ray.config import PoolConfig
from firepool_ray.runtime import pool as pools
from tests import jobs
from tests.conftest import (
    KEPT,
    PATIENCE_S,
    driver,
    eventually,
    eventually_none,
    local_ray,
    output_of,
)

ROOT = str(Path(__file__).parents[2])
SETTINGS = {
    "profiles": {"cpu": {**KEPT, "cpus": 0.5, "max_lanes": 2}},
    "window_s": 0.5,
}


@pytest.fixture(scope="module", autouse=True)
def pool() -> Iterator[Any]:
    with local_ray(num_cpus=6, dashboard=True):
        handle = pools.start_pool(PoolConfig.from_dict(SETTINGS))
        fp.start()
        yield handle
        fp.shutdown()
        pools.stop_pool(handle)


def address() -> str:
    return str(ray.get_runtime_context().gcs_address)


# ---------------------------------------------------------------- drivers

MODULE = """
from dataclasses import dataclass

@dataclass
class Point:
    x: int

def moved(point, by):
    from sibling import add
    return Point(add(point.x, by))
"""

MAIN = """
import sys
import ray
import firepool_ray as fp
from geometry import Point, moved

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
offset = 100

def shifted(point):
    return moved(point, offset)

def make(n):
    return lambda point: Point(point.x * n)

assert fp.submit(moved, Point(1), 2).result(timeout_s=90) == Point(3)
assert fp.submit(shifted, Point(1)).result(timeout_s=90) == Point(101)
assert fp.submit(make(7), Point(2)).result(timeout_s=90) == Point(14)
assert isinstance(fp.submit(lambda: Point(5)).result(timeout_s=90), Point)
print("done")
fp.shutdown()
"""


def test_a_drivers_own_modules_travel_with_its_functions(tmp_path: Path) -> None:
    """The script lies elsewhere, and no worker has its modules installed."""
    (tmp_path / "geometry.py").write_text(MODULE)
    (tmp_path / "sibling.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "main.py").write_text(MAIN)
    run = subprocess.Popen(
        [sys.executable, str(tmp_path / "main.py"), address()],
        env={**os.environ, "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert output_of(run).split() == ["done"]


FORKS = """
import os, sys, time
import ray
import firepool_ray as fp

def use(address):
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    assert fp.submit(sum, [1, 2, 3]).result(timeout_s=90) == 6
    fp.shutdown()
    ray.shutdown()

child = os.fork()
if child == 0:
    use(sys.argv[1])
    os._exit(0)
use(sys.argv[1])
assert os.waitpid(child, 0)[1] == 0
print("done")
"""


def test_parent_and_forked_child_are_clients_of_their_own() -> None:
    run = driver(FORKS, address(), PYTHONPATH=ROOT)
    assert output_of(run).split() == ["done"]


CLIENT = """
import sys, asyncio
import ray
import firepool_ray as fp

ray.init(sys.argv[1], logging_level="ERROR")
assert fp.submit(lambda a, b: a + b, 1, b=2).result(timeout_s=90) == 3
assert sum(fp.map(lambda x: x * x, range(20))) == 2470
assert fp.submit(sum, ray.put([4, 5])).result(timeout_s=90) == 9

@ray.remote
def late():
    import time
    time.sleep(0.5)
    return [6]

assert fp.submit(sum, late.remote()).result(timeout_s=90) == 6
assert fp.submit(sum, fp.submit(list, (7, 8))).result(timeout_s=90) == 15
assert ray.get(fp.submit(bytes, 1_000_000).ref) == bytes(1_000_000)
try:
    fp.submit(lambda: 1 / 0).result(timeout_s=90)
except ZeroDivisionError:
    pass
else:
    raise SystemExit("no error")

async def main():
    return await asyncio.gather(*(fp.submit(abs, -k) for k in range(10)))

assert asyncio.run(main()) == list(range(10))
print("done")
fp.shutdown()
"""


def test_through_ray_client(tmp_path: Path) -> None:
    port = _free_port()
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "ray.util.client.server"),
            *("--address", address(), "--host", "127.0.0.1", "--port", str(port)),
            *("--mode", "specific-server"),
        ],
        env={**os.environ, "PYTHONPATH": ROOT},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: _listens(port))
        run = driver(CLIENT, f"ray://127.0.0.1:{port}", PYTHONPATH=ROOT)
        assert output_of(run).split() == ["done"]
    finally:
        server.kill()
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


ENTRYPOINT = """
import firepool_ray as fp
from helper import triple

print("sum:", sum(fp.map(triple, range(10))))
print("caller:", fp.submit(abs, -1).info().caller)
"""


def test_from_a_ray_jobs_entrypoint(tmp_path: Path) -> None:
    from ray.job_submission import JobStatus, JobSubmissionClient

    (tmp_path / "entry.py").write_text(ENTRYPOINT)
    (tmp_path / "helper.py").write_text("def triple(x):\n    return 3 * x\n")
    client = JobSubmissionClient(f"http://{ray._private.worker._global_node.webui_url}")
    job = eventually(lambda: _submit_entrypoint(client, tmp_path), 3 * PATIENCE_S)
    ended = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED)
    eventually_none(lambda: client.get_job_status(job) not in ended, 3 * PATIENCE_S)
    logs = client.get_job_logs(job)
    assert client.get_job_status(job) == JobStatus.SUCCEEDED, (
        client.get_job_info(job).message + logs
    )
    assert "sum: 135" in logs
    assert re.search(r"caller: default/job-\w+", logs)


def _submit_entrypoint(client: Any, folder: Path) -> str | None:
    try:
        return str(
            client.submit_job(
                entrypoint=f"{sys.executable} entry.py",
                runtime_env={"working_dir": str(folder), "env_vars": {"PYTHONPATH": ROOT}},
            )
        )
    except RuntimeError:  # the dashboard's agent is not up yet
        return None


# ---------------------------------------------------------------- threads and loops


def test_threads_and_event_loops_share_one_client(pool: Any) -> None:
    values: list[int] = []

    def from_thread(first: int) -> None:
        values.extend(fp.submit(abs, -k).result(timeout_s=PATIENCE_S) for k in _ten(first))

    def from_loop(first: int) -> None:
        async def main() -> list[int]:
            return list(await asyncio.gather(*(fp.submit(abs, -k) for k in _ten(first))))

        values.extend(asyncio.run(main()))

    targets = [from_thread, from_loop] * 2
    threads = [threading.Thread(target=t, args=(10 * n,)) for n, t in enumerate(targets)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(values) == list(range(40))
    own = [c for c in ray.get(pool.describe.remote())["clients"] if c["pid"] == os.getpid()]
    assert len(own) == 1


def _ten(first: int) -> range:
    return range(first, first + 10)


@ray.remote(num_cpus=0)
class Async:
    async def ask(self, count: int) -> list[int]:
        return list(await asyncio.gather(*(fp.submit(abs, -k) for k in range(count))))


def test_an_async_actor_awaits_many_jobs_at_once() -> None:
    actor = Async.remote()
    answers = ray.get([actor.ask.remote(20) for _ in range(3)], timeout=3 * PATIENCE_S)
    assert answers == [list(range(20))] * 3
    ray.kill(actor)


# ---------------------------------------------------------------- what travels


@ray.remote(num_cpus=0)
def _later(value: Any, seconds: float) -> Any:
    time.sleep(seconds)
    return value


def test_a_reference_that_is_not_ready_keeps_no_worker_waiting() -> None:
    late = fp.submit(sum, _later.remote([1, 2], 3.0))
    assert [fp.submit(abs, -k).result(timeout_s=PATIENCE_S) for k in range(20)] == list(range(20))
    assert not late.done()
    assert late.result(timeout_s=PATIENCE_S) == 3


def test_big_results_do_not_pass_the_controller(pool: Any) -> None:
    before = ray.get(pool.describe.remote())["memory_bytes"]
    for seed in range(4):
        job = fp.submit(_big, seed)
        value = job.result(timeout_s=PATIENCE_S)
        assert value.nbytes == 100_000_000
        assert value[0] == value[-1] == seed
        other = fp.submit(_total, job.ref)
        assert other.result(timeout_s=PATIENCE_S) == 12_500_000 * seed
        del job, value
    after = ray.get(pool.describe.remote())["memory_bytes"]
    assert after - before < 50_000_000, "results went through the controller"


def _big(seed: int) -> Any:
    return np.full(12_500_000, seed, dtype=np.int64)


def _total(array: Any) -> int:
    return int(array.sum())


def test_jobs_of_jobs_have_the_same_caller() -> None:
    outer = fp.options(caller="outer").submit(_nested, 3)
    assert outer.result(timeout_s=PATIENCE_S) == (6, "default/outer")


def _nested(n: int) -> tuple[int, str]:
    inner = fp.submit(jobs.accept)
    total = sum(fp.map(abs, [-k for k in range(n + 1)]))
    return total, inner.info().caller
