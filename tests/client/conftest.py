"""A pool for the client's tests: one real local Ray and one pool per module."""

from __future__ import annotations

import shutil
import tempfile

import pytest
import ray

import firepool_ray as fp
from tests.conftest import KEPT

POOL = {
    "profiles": {
        "cpu": {
            **KEPT,
            "cpus": 0.5,
            "max_lanes": 4,
            "min_lanes": 2,
            "standbys": 1,
        }
    },
    "queues": {"rl": {}},
    "refill_rate_per_s": 20.0,
    "refill_burst": 8,
}


@pytest.fixture(scope="module")
def cluster():
    """A local Ray of four CPUs."""
    folder = tempfile.mkdtemp(prefix="fp-", dir="/tmp")
    ray.init(num_cpus=6, _temp_dir=folder, include_dashboard=False, log_to_driver=False)
    yield ray
    fp.shutdown()
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def pool(cluster):
    fp.start(POOL)
    yield fp
    fp.shutdown()
