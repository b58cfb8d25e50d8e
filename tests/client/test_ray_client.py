"""Everything through a Ray Client server (``ray://``), from a process of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SERVER = """
import os, sys
import ray
from ray.util.client.server.server import serve

ray.init(num_cpus=4, _temp_dir=sys.argv[1], include_dashboard=False, log_to_driver=False)
server = serve("127.0.0.1", int(sys.argv[2]))
print("mode", os.environ.get("RAY_AUTH_MODE", ""), flush=True)
sys.stdin.read()
server.stop(0)
ray.shutdown()
"""

CLIENT = """
import sys, time
import numpy as np
import ray
import firepool_ray as fp

def add(a, b=0):
    return a + b

def fail():
    raise KeyError("mine")

@ray.remote
def broken():
    raise LookupError("no such thing")

def error_of(job):
    return type(job.exception(60)).__name__

ray.init(f"ray://127.0.0.1:{sys.argv[1]}")
assert fp.submit(add, 1, 2).result(60) == 3
big = fp.submit(np.ones, 2_000_000)
assert big.result(60).sum() == 2_000_000
assert fp.submit(np.sum, big).result(60) == 2_000_000
assert fp.submit(np.sum, np.ones(300_000)).result(60) == 300_000
assert fp.submit(add, ray.put(3), 4).result(60) == 7
assert list(fp.map(add, range(20))) == list(range(20))
assert ray.get(fp.submit(add, 1).ref) == 1
assert error_of(fp.submit(fail)) == "KeyError"
assert error_of(fp.submit(add, broken.remote())) == "LookupError"
slow = fp.submit(time.sleep, 60)
while slow.info().state != "running":
    time.sleep(0.01)
slow.cancel()
assert error_of(slow) == "JobCancelled"
fp.shutdown()
print("all is well")
"""

#: The server goes while a job runs: neither that one nor the next one may hang.
LOST = """
import sys, time
import ray
import firepool_ray as fp

ray.init(f"ray://127.0.0.1:{sys.argv[1]}")
job = fp.submit(time.sleep, 600)
while job.info().state != "running":
    time.sleep(0.01)
print("running", flush=True)
print("first", type(job.exception(100)).__name__, flush=True)
print("next", type(fp.submit(time.sleep, 0).exception(100)).__name__, flush=True)
print("here", ray.is_initialized(), flush=True)
"""


@pytest.fixture
def server():
    folder = tempfile.mkdtemp(prefix="fp-", dir="/tmp")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, folder, port],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    mode = next((line.split()[1:] for line in process.stdout if line.startswith("mode")), [])
    yield port, mode, process
    process.stdin.close()
    try:
        process.wait(30)
    finally:
        process.kill()
        process.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


def env_of_client(mode):
    # a client must state the server's way of authentication; Ray does the rest
    return {**os.environ, "PYTHONPATH": str(ROOT), **({"RAY_AUTH_MODE": mode[0]} if mode else {})}


def test_the_public_face_through_ray_client(server):
    port, mode, _ = server
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CLIENT), port],
        env=env_of_client(mode),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert "all is well" in done.stdout


def test_a_lost_server_ends_every_job_with_an_error(server):
    """And no Ray is started in its place."""
    port, mode, process = server
    client = subprocess.Popen(
        [sys.executable, "-c", LOST, port],
        env={**env_of_client(mode), "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert client.stdout.readline() == "running\n"
    process.kill()  # the rest of its Ray ends with it
    try:
        said, _ = client.communicate(timeout=150)
    finally:
        client.kill()
    assert said.split() == ["first", "WorkerLost", "next", "PoolUnavailable", "here", "False"]
