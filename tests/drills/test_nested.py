"""Drill 5: one lane, a job that depends on a job, a lost reply, a killed client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

import firepool_ray as fp
from tests.conftest import eventually, pool_of

LOSES_A_REPLY = """
import sys
import ray, firepool_ray as fp

def first(path):
    with open(path, "a") as file:
        file.write("x")
    return 20

def second(value):
    return value + 1

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
warm = fp.options(caller="nested")
f = warm.submit(first, sys.argv[2])
g = warm.submit(second, f.ref)
print(g.result(timeout_s=90))
fp.shutdown()
"""

DIES = """
import os, sys, time
import ray, firepool_ray as fp

def long_job(path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
job = fp.options(caller="nested").submit(long_job, sys.argv[2])
job.result()
"""

SETTINGS = {
    "profiles": {"gpu": {"gpus": 1, "cpus": 0, "max_lanes": 1}},
    "window_s": 0.5,
}


def _client(code: str, *args: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("attempt", range(2))
def test_lost_reply_and_killed_client(tmp_path: Path, attempt: int) -> None:
    with pool_of(SETTINGS, num_gpus=1) as controller:
        address = ray.get_runtime_context().gcs_address
        marks = tmp_path / "marks"
        # method=max failures:request loss %:reply loss %
        loss = {"RAY_testing_rpc_failure": "CoreWorkerService.grpc_client.PushTask=1:0:100"}
        client = _client(LOSES_A_REPLY, address, str(marks), **loss)
        out, err = client.communicate(timeout=150)
        assert client.returncode == 0, err
        assert out.split() == ["21"]
        assert marks.read_text() == "x", "the job ran more than once"

        started = tmp_path / "started"
        doomed = _client(DIES, address, str(started))
        eventually(lambda: started.exists() and started.read_text())
        worker = int(started.read_text())
        doomed.send_signal(signal.SIGKILL)
        doomed.wait()
        after = fp.options(caller="after").submit(os.getpid)
        assert after.result(timeout_s=60) != worker
        eventually(lambda: not os.path.exists(f"/proc/{worker}"))
        held = ray.get(controller.describe.remote())["queues"][0]["held"]
        assert held == 1.0
        time.sleep(0)
