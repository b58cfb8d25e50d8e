"""``firepool bench --kube`` from end to end, by its shortest figure."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.kube.bed import Bed
from tests.kube.cluster.standing import FIREPOOL

NODES = "cpu-a:cpu=16,mem=64;gpu-a:cpu=8,mem=64,gpu=4"
KUEUE = True
POOL = Path(__file__).parents[2] / "bench.yaml"


def test_a_figure_is_measured_and_nothing_is_left(bed: Bed) -> None:
    done = subprocess.run(
        [FIREPOOL, "bench", "--kube", "-f", str(POOL), "--only", "kube_quota", "--json"],
        env={**os.environ, "KUBECONFIG": str(bed.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (figure,) = json.loads(done.stdout)["figures"]
    assert figure["ok"] and figure["value"] > 0, figure
    assert bed.pods() == []
    queues = bed.custom.list_cluster_custom_object("kueue.x-k8s.io", "v1beta2", "clusterqueues")
    assert queues["items"] == []
