"""Shared by all tests: Ray clusters that never meet.

Each cluster has its own short temp folder (Unix socket paths are short) and is shut down by the
fixture that made it. Tests that start Ray share one cluster per module.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import settings

import firepool_ray as fp

#: Bound on everything that is awaited in tests; nothing is asserted about how long it took.
PATIENCE_S = 60.0


#: For profiles whose tests are not about keep-alive: idle workers stay for as long as a test lasts.
KEPT = {"keep_alive": "fixed:60", "lane_keep_s": 300.0}

# A run of the tests is the same each time; ``FIREPOOL_EXPLORE=n`` looks for new examples.
settings.register_profile("repeatable", derandomize="FIREPOOL_EXPLORE" not in os.environ)
settings.load_profile("repeatable")


@contextmanager
def local_ray(*, num_cpus: int = 4, num_gpus: int = 0, dashboard: bool = False) -> Iterator[None]:
    """A Ray of its own on this machine, gone afterwards."""
    import ray

    folder = tempfile.mkdtemp(prefix="fp")
    ray.init(
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        include_dashboard=dashboard,
        _temp_dir=folder,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=500_000_000,
    )
    try:
        yield
    finally:
        fp.shutdown()
        ray.shutdown()
        left = eventually_none(lambda: processes_of(folder))
        shutil.rmtree(folder, ignore_errors=True)
        assert not left, f"left behind: {left}"


def processes_of(folder: str) -> dict[int, str]:
    """Living processes that have to do with a cluster, by its folder: name by pid."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) != os.getpid() and any(
            folder.encode() in _proc(pid, name) for name in ("cmdline", "environ", "maps")
        ):
            found[int(pid)] = _proc(pid, "comm").decode(errors="replace").strip()
    return found


def _proc(pid: str, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    text = _proc(str(pid), "stat")
    return not text or text[text.rfind(b")") + 2 :][:1] in b"ZX"


def driver(code: str, *args: object, **env: str) -> subprocess.Popen[str]:
    """Another process that runs ``code``; it finds this package without installing it."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(process: subprocess.Popen[str], timeout_s: float = 3 * PATIENCE_S) -> str:
    """What it printed, once it has ended well."""
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, f"exit code {process.returncode}\n{out}\n{err}"
    return out


#: Environment of a process that does not get one reply in five of its calls to actors.
LOSES_REPLIES = {
    "RAY_testing_rpc_failure": json.dumps(
        {
            "CoreWorkerService.grpc_client.PushTask": {
                "num_failures": -1,
                "req_failure_prob": 0,
                "resp_failure_prob": 20,
                "in_flight_failure_prob": 0,
            }
        }
    )
}


@contextmanager
def pool_of(settings: dict[str, Any], *, num_cpus: int = 4, num_gpus: int = 2) -> Iterator[Any]:
    """A pool with these settings on a Ray of its own; yields its controller's handle."""
    from firepool_ray.config import PoolConfig
    from firepool_ray.runtime import pool

    with local_ray(num_cpus=num_cpus, num_gpus=num_gpus):
        handle = pool.start_pool(PoolConfig.from_dict(settings))
        fp.start()  # an earlier test of this process may have shut its pool down
        try:
            yield handle
        finally:
            fp.shutdown()
            pool.stop_pool(handle)


def eventually_none(what: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """The last result of ``what``: an empty one, if there is one within the timeout."""
    deadline = time.monotonic() + timeout_s
    while (result := what()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return result


def eventually(
    what: Callable[[], Any], timeout_s: float = PATIENCE_S, every_s: float = 0.05
) -> Any:
    """The first true result of ``what``; fails the test with its last result otherwise."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = what()
        if result:
            return result
        if time.monotonic() > deadline:
            pytest.fail(f"still {result!r} after {timeout_s:g} s")
        time.sleep(every_s)
