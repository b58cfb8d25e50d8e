"""Drill 2: a job holds the GIL while everything conspires against its worker."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

import ray

import firepool_ray as fp
from tests import jobs
from tests.conftest import PATIENCE_S, eventually, is_gone, pool_of


def _hold_gil(path: str, seconds: int) -> int:
    """``sleep`` through ``PyDLL``, which unlike ``CDLL`` keeps the interpreter lock."""
    jobs.mark(path)
    ctypes.PyDLL(None).sleep(seconds)
    return os.getpid()


def test_gil_holder_finishes_and_then_the_lane_is_handed_over(tmp_path: Path) -> None:
    settings = {
        "profiles": {"gpu": {"gpus": 1, "cpus": 0, "max_lanes": 1, "keep_alive": "fixed:0.5"}},
        "window_s": 0.5,
    }
    marks = tmp_path / "marks"
    with pool_of(settings, num_gpus=1) as controller:
        holder = fp.options(caller="holder").submit(_hold_gil, str(marks), 8)
        eventually(marks.exists)
        time.sleep(1.0)  # its keep-alive runs out meanwhile
        ray.get(controller.set_idle_cap.remote(0.0))
        other = fp.options(caller="other").submit(jobs.pid)
        epoch, pid = ray.get(controller.ping.remote())
        os.kill(pid, signal.SIGKILL)
        held_by = holder.result(timeout_s=PATIENCE_S)
        taken_by = other.result(timeout_s=PATIENCE_S)
        assert held_by != taken_by
        assert marks.read_text().split() == ["x"], "it ran more than once"
        assert other.info().lane == holder.info().lane
        assert other.info().started_at >= holder.info().ended_at
        assert ray.get(controller.ping.remote())[0] > epoch
        eventually(lambda: is_gone(held_by))
