"""``firepool kube`` under the real Kueue: admitted, kept when applied again, held without quota."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kube.bed import Bed
from tests.kube.cluster.test_kueue import QUOTA, queue_objects

NODES = "cpu-a:cpu=8,mem=32"
KUEUE = True
PATIENCE_S = 120.0


def firepool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("firepool")
    return subprocess.run(
        [command, "kube", *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def pool_file(folder: Path, name: str) -> str:
    """Head and system pod need 2 CPUs, which is all of the queue's quota."""
    pool = {
        "profiles": {"cpu": {"max_lanes": 1}},
        "queues": {"rl": {"cluster_queue": "kueue:rl"}},
        "kubernetes": {
            "name": name,
            "queue": "kueue:rl",
            "run_as_user": 0,
            "drain_s": 5,
            "drivers": {"max_pods": 0},
            "ray_start_params": {"object-store-memory": "200000000"},
        },
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(pool))
    return str(path)


def suspended(bed: Bed, name: str) -> bool:
    found = bed.custom.get_namespaced_custom_object("ray.io", "v1", "default", "rayclusters", name)
    return bool(found["spec"]["suspend"])


def test_a_pool_is_admitted_and_a_second_one_waits(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(bed.kubeconfig))
    first, second = pool_file(tmp_path, "first"), pool_file(tmp_path, "second")
    done = firepool("doctor", "-f", first)
    assert done.returncode == 1
    assert "problem  kubernetes.queue: there is no LocalQueue 'rl'" in done.stdout
    bed.apply(queue_objects("rl", QUOTA))
    assert firepool("doctor", "-f", first).returncode == 0

    done = firepool("up", "-f", first, "--timeout", str(PATIENCE_S))
    assert done.returncode == 0, f"{done.stderr}\n{bed.describe()}"
    assert not suspended(bed, "first")
    said: dict[str, Any] = json.loads(firepool("status", "-f", first, "--json").stdout)
    assert any("Admitted=True" in line for line in said["admission"])

    # What is applied again says nothing about suspension: that is Kueue's.
    assert firepool("up", "-f", first, "--timeout", str(PATIENCE_S)).returncode == 0
    assert not suspended(bed, "first")

    done = firepool("up", "-f", second, "--timeout", "5")
    assert done.returncode == 1
    assert "RayCluster 'second' is suspended (its queue has not admitted it" in done.stderr
    assert "insufficient unused quota for cpu" in done.stderr
    assert suspended(bed, "second")

    assert firepool("down", "-f", first).returncode == 0
    bed.wait_for(lambda: not suspended(bed, "second"), PATIENCE_S, "admission of the second")
    assert firepool("down", "-f", second).returncode == 0
    assert bed.pods() == []
