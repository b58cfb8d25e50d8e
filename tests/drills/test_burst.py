"""Drill 1: 3,000 jobs at once from threads, event loops and processes of one caller."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from typing import Any

import ray

import firepool_ray as fp
from tests.conftest import KEPT, eventually, pool_of

WORKERS = 8
JOBS_PER_SOURCE = 250  # 12 sources: 8 threads, 2 event loops, 2 further processes

PROCESS = """
import json, os, sys, time
import ray, firepool_ray as fp

def job(k):
    begun = time.monotonic()
    time.sleep(0.01)
    return os.getpid(), begun, time.monotonic()

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
burst = fp.options(caller="burst")
jobs = [burst.submit(job, k) for k in range(int(sys.argv[2]))]
print(json.dumps([j.result(timeout_s=240) for j in jobs]))
fp.shutdown()
"""


def _job(_: int) -> tuple[int, float, float]:
    import os

    begun = time.monotonic()
    time.sleep(0.01)
    return os.getpid(), begun, time.monotonic()


def _from_loop(results: list[Any], count: int) -> None:
    async def main() -> None:
        jobs = [fp.options(caller="burst").submit(_job, k) for k in range(count)]
        results.extend(await asyncio.gather(*jobs))

    asyncio.run(main())


def _from_thread(results: list[Any], count: int) -> None:
    jobs = [fp.options(caller="burst").submit(_job, k) for k in range(count)]
    results.extend(job.result(timeout_s=240) for job in jobs)


def test_burst_of_one_caller_and_a_second_caller() -> None:
    settings = {
        "profiles": {
            "cpu": {
                **KEPT,
                "cpus": 0.25,
                "standbys": 0,
                "min_lanes": 8,
                "max_lanes": WORKERS,
            }
        },
        "window_s": 0.5,
    }
    with pool_of(settings, num_cpus=4, num_gpus=0) as controller:
        eventually(lambda: fp.options(caller="first").submit(_job, 0).result() is not None)
        before = ray.get(controller.describe.remote())["memory_bytes"]
        address = ray.get_runtime_context().gcs_address
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", PROCESS, address, str(JOBS_PER_SOURCE)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        results: list[Any] = []
        threads = [
            threading.Thread(target=target, args=(results, JOBS_PER_SOURCE))
            for target in [_from_thread] * 8 + [_from_loop] * 2
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: ray.get(controller.describe.remote())["queues"][0]["held"] >= 2)
        second = fp.options(caller="second").submit(_job, 0)
        second.result(timeout_s=240)
        still_waiting = sum(thread.is_alive() for thread in threads)
        for thread in threads:
            thread.join(timeout=300)
        assert not any(thread.is_alive() for thread in threads)
        for process in processes:
            out, _ = process.communicate(timeout=300)
            assert process.returncode == 0
            results.extend(tuple(row) for row in json.loads(out.splitlines()[-1]))

        assert len(results) == 12 * JOBS_PER_SOURCE
        assert still_waiting > 0, "the second caller waited for the whole burst"
        _assert_one_job_per_worker(results)
        after = ray.get(controller.describe.remote())["memory_bytes"]
        assert after < before * 1.25, "controller memory grew with the number of jobs"


def _assert_one_job_per_worker(results: list[Any]) -> None:
    by_worker: dict[int, list[tuple[float, float]]] = {}
    for pid, begun, ended in results:
        by_worker.setdefault(pid, []).append((begun, ended))
    for spans in by_worker.values():
        spans.sort()
        for (_, ended), (begun, _) in zip(spans, spans[1:], strict=False):
            assert ended <= begun
