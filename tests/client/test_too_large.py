"""Arguments beyond every object store are refused at once, and the pool goes on."""

from __future__ import annotations

import numpy as np
import pytest

import firepool_ray as fp
from firepool_ray.errors import ArgumentTooLarge
from tests.conftest import KEPT, pool_of


def test_arguments_beyond_the_object_store_are_refused_at_once() -> None:
    settings = {"profiles": {"cpu": {**KEPT, "cpus": 0.25, "max_lanes": 1}}}
    with pool_of(settings, num_gpus=0):  # its object store has 500 MB
        with pytest.raises(ArgumentTooLarge, match="pass less"):
            fp.submit(len, np.zeros(600_000_000, dtype=np.uint8))
        fits = fp.submit(len, np.zeros(100_000_000, dtype=np.uint8))
        assert fits.result(timeout_s=60) == 100_000_000
        counts = fp.status()["queues"][0]
        assert counts["demand_workers"] == 0
