"""The commands against a pool that really runs."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from click.testing import CliRunner, Result

import firepool_ray as fp
from firepool_ray.cli.commands import main
from firepool_ray.errors import PoolUnavailable
from firepool_ray.runtime import session

POOL = """
profiles: {small: {cpus: 1, min_lanes: 1, max_lanes: 2}}
queues: {rl: {quota_gpus: 1}}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="fpt")
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        logging_level="ERROR",
        _temp_dir=folder,
    )
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_pool_from_up_to_down(cluster: None, tmp_path: Path) -> None:
    assert run("status").output.startswith("Error: no pool runs on this cluster")
    assert "No pool is running" in run("down").output

    pool_file = tmp_path / "pool.yaml"
    pool_file.write_text(POOL)
    up = run("up", "-f", str(pool_file))
    assert up.exit_code == 0 and "1 of 1 lanes are ready." in up.output, up.output
    assert "already running" in run("up", "-f", str(pool_file)).output

    fp.start()  # an earlier module may have shut this process's client down
    job = fp.options(queue="rl", caller="me").submit(abs, -3)
    assert job.result(timeout_s=60) == 3

    described = json.loads(run("status", "--json").output)
    assert described["queues"][-1]["queue"] == "rl" and described["queues"][-1]["held"] == 1
    assert described["workers"]["by_caller"] == {"rl/me": 1}
    page = run("status").output
    assert "rl/me" in page and "small" in page

    about_caller = run("explain", "me")
    assert about_caller.exit_code == 0 and "rl/me" in about_caller.output
    about_job = run("explain", job.info().job)
    assert about_job.exit_code == 0 and "abs" in about_job.output
    assert run("explain", "nobody").exit_code == 1

    fp.shutdown()
    assert run("status").exit_code == 0, "a pool started by `up` does not end with its clients"
    assert run("down").exit_code == 0
    assert run("status").exit_code == 1


def test_a_cluster_that_is_not_there_is_one_clear_error() -> None:
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(PoolUnavailable, match="ray start --head"), session.cluster("127.0.0.1:1"):
        pass
