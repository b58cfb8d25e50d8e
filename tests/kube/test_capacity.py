"""Whether a node could hold a pod."""

from __future__ import annotations

from typing import Any

import pytest

from firepool_ray.kube.api import Object
from firepool_ray.kube.capacity import shortage


def node(labels: dict[str, str] | None = None, **offers: str) -> Object:
    renamed = {key.replace("gpu", "nvidia.com/gpu"): value for key, value in offers.items()}
    return {"metadata": {"labels": labels or {}}, "status": {"allocatable": renamed}}


def pod(selector: dict[str, str] | None = None, **asks: str) -> dict[str, Any]:
    renamed = {key.replace("gpu", "nvidia.com/gpu"): value for key, value in asks.items()}
    spec: dict[str, Any] = {"containers": [{"resources": {"requests": renamed}}]}
    return {**spec, "nodeSelector": selector} if selector else spec


NODES = [node(cpu="8", memory="32Gi"), node({"zone": "a"}, cpu="4", memory="8Gi", gpu="2")]


@pytest.mark.parametrize(
    ("asks", "text"),
    [
        (pod(cpu="4", memory="8Gi", gpu="2"), ""),
        (pod(cpu="7500m"), ""),
        (pod(gpu="3"), "no node has 3 nvidia.com/gpu (most: 2)"),
        (pod(cpu="6", gpu="1"), "no single node has all of 6 cpu, 1 nvidia.com/gpu"),
        (pod({"zone": "a"}, cpu="4"), ""),
        (pod({"zone": "a"}, cpu="6"), "no node has 6 cpu (most: 4)"),
        (pod({"zone": "b"}, cpu="1"), "no node has the labels zone=b"),
    ],
)
def test_what_every_node_lacks(asks: dict[str, Any], text: str) -> None:
    assert shortage(NODES, asks) == text


def test_containers_add_up() -> None:
    two = {"containers": [{"resources": {"requests": {"cpu": "5"}}}] * 2}
    assert shortage(NODES, two) == "no node has 10 cpu (most: 8)"


def test_a_cluster_without_nodes() -> None:
    assert shortage([], pod(cpu="1")) == "there is no node"
