"""The main job as a user runs it: as a script, and through Ray Jobs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from ray.job_submission import JobStatus, JobSubmissionClient

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MARK = "FIREPOOL_TEST_MARK"


def marked(mark: str) -> list[int]:
    """Processes that were started with the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"{MARK}={mark}\0".encode() in environment:
                found.append(int(entry.name))
    return found


def run_script(*command: str) -> tuple[subprocess.CompletedProcess[str], list[int]]:
    """Run an example; returns what it said, and the processes it left behind."""
    mark = uuid.uuid4().hex
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, *command],
        env={**environment, MARK: mark},
        text=True,
        capture_output=True,
        timeout=180,
    )
    deadline = time.monotonic() + 15
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return done, left


def test_the_main_job_learns_compares_and_leaves_nothing() -> None:
    script = str(EXAMPLES / "rl_rollouts" / "train.py")
    done, left = run_script(script, "--compare", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Learned" in done.stdout and "a fresh actor per batch" in done.stdout
    assert "warm" in done.stdout
    assert left == []


def test_the_agents_solve_their_tasks_and_leave_nothing() -> None:
    done, left = run_script(str(EXAMPLES / "agent_tools" / "run.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed, 0 failed" in done.stdout and "2 passed, 0 failed" in done.stdout
    assert left == []


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def jobs() -> Iterator[JobSubmissionClient]:
    # Ports of our own: the agent that starts jobs needs one, and other clusters may be here.
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 4,
            "num_gpus": 2,
            "include_dashboard": True,
            "dashboard_port": free_port(),
            "dashboard_agent_listen_port": free_port(),
        },
    )
    try:
        yield JobSubmissionClient(f"http://{cluster.head_node.webui_url}")
    finally:
        cluster.shutdown()


def submit(jobs: JobSubmissionClient, entrypoint: str) -> str:
    """Ray's agent, which starts jobs, comes up some time after the cluster."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return jobs.submit_job(
                entrypoint=entrypoint,
                runtime_env={"working_dir": str(EXAMPLES / "rl_rollouts")},
            )
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def test_the_main_job_runs_through_ray_jobs(jobs: JobSubmissionClient) -> None:
    submitted = submit(jobs, f"{sys.executable} train.py --compare 0")
    deadline = time.monotonic() + 180
    while not (status := jobs.get_job_status(submitted)).is_terminal():
        assert time.monotonic() < deadline, jobs.get_job_logs(submitted)
        time.sleep(0.5)
    logs = jobs.get_job_logs(submitted)
    assert status == JobStatus.SUCCEEDED, logs
    assert "Learned" in logs
