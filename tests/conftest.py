"""Shared by all tests: Ray clusters that never meet.

Each cluster has its own short temp folder (Unix socket paths are short) and is shut down by the
fixture that made it. Tests that start Ray share one cluster per module.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import firepool_ray as fp

#: Bound on everything that is awaited in tests; nothing is asserted about how long it took.
PATIENCE_S = 60.0


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
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def pool_of(settings: dict[str, Any], *, num_cpus: int = 4, num_gpus: int = 2) -> Iterator[Any]:
    """A pool with these settings on a Ray of its own; yields its controller's handle."""
    from firepool_ray.config import PoolConfig
    from firepool_ray.runtime import pool

    with local_ray(num_cpus=num_cpus, num_gpus=num_gpus):
        handle = pool.start_pool(PoolConfig.from_dict(settings))
        try:
            yield handle
        finally:
            fp.shutdown()
            pool.stop_pool(handle)


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
