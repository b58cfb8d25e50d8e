"""A head that is gone for good: Ray ends everything, and says so."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

from tests.conftest import PATIENCE_S, driver, eventually_none, processes_of

DRIVER = """
import sys, time
import ray, firepool_ray as fp

ray.init(
    num_cpus=2, include_dashboard=False, _temp_dir=sys.argv[1], log_to_driver=False,
    logging_level="ERROR",
)
profile = {"cpus": 0.5, "max_lanes": 1, "keep_alive": "fixed:60", "lane_keep_s": 300.0}
fp.start({"profiles": {"cpu": profile}})
fp.submit(abs, -1).result(timeout_s=90)
running = fp.submit(time.sleep, 600)
waiting = fp.options(caller="other").submit(abs, -1)
print(ray._private.worker._global_node.all_processes["gcs_server"][0].process.pid, flush=True)
waiting.result(timeout_s=600)
"""


def test_without_a_head_clients_end_with_a_clear_error_and_nothing_stays() -> None:
    folder = tempfile.mkdtemp(prefix="fp")
    client = driver(DRIVER, folder, RAY_gcs_rpc_server_reconnect_timeout_s="5")
    assert client.stdout is not None
    os.kill(int(client.stdout.readline()), signal.SIGKILL)
    _, err = client.communicate(timeout=3 * PATIENCE_S)
    assert client.returncode != 0
    assert "Failed to connect to GCS" in err or "PoolUnavailable" in err, err
    left = eventually_none(lambda: processes_of(folder), 2 * PATIENCE_S)
    shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"left behind: {left}"
