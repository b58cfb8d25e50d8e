"""Drill 2: a job holds the GIL while everything conspires against its worker."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import ray

import firepool_ray as fp
from tests.conftest import eventually, pool_of


def _hold_gil(seconds: int) -> int:
    """``sleep`` through ``PyDLL``, which unlike ``CDLL`` keeps the interpreter lock."""
    ctypes.PyDLL(None).sleep(seconds)
    return os.getpid()


def test_gil_holder_finishes_and_then_the_lane_is_handed_over() -> None:
    settings = {
        "profiles": {"gpu": {"gpus": 1, "cpus": 0, "max_lanes": 1, "keep_alive_s": 0.5}},
        "window_s": 0.5,
    }
    with pool_of(settings, num_gpus=1) as controller:
        holder = fp.options(caller="holder").submit(_hold_gil, 8)
        eventually(lambda: ray.get(controller.describe.remote())["workers"]["by_state"].get("busy"))
        time.sleep(1.0)  # longer than the keep-alive, counted from the grant
        ray.get(controller.set_idle_cap.remote(0.0))
        other = fp.options(caller="other").submit(os.getpid)
        epoch, pid = ray.get(controller.ping.remote())
        os.kill(pid, signal.SIGKILL)
        held_by = holder.result(timeout_s=60)
        taken_by = other.result(timeout_s=60)
        assert held_by != taken_by
        assert holder.info()["attempts"] == 1
        assert ray.get(controller.ping.remote())[0] > epoch
        workers = [
            worker
            for lane in ray.get(controller.describe.remote())["lanes"]
            for worker in lane["workers"]
        ]
        assert held_by not in [w["pid"] for w in workers if w["state"] in ("busy", "idle")]
