"""Nodes as a test writes them down, and as the API server gets them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

GPU = "nvidia.com/gpu"
DEFAULT_NODES = "cpu-a:cpu=8,mem=32;gpu-a:cpu=8,mem=32,gpu=4"

_SUFFIXES = {
    **{s: Decimal(1000) ** n for s, n in {"n": -3, "u": -2, "m": -1, "": 0, "k": 1}.items()},
    **{s: Decimal(1000) ** n for n, s in enumerate("MGTPE", start=2)},
    **{f"{s}i": Decimal(1024) ** n for n, s in enumerate("KMGTPE", start=1)},
}


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node: how much it claims to have; nothing is limited to it but by the scheduler."""

    name: str
    cpu: int = 4
    mem: int = 16  #: GiB
    gpu: int = 0  #: counted as ``nvidia.com/gpu``
    dra: int = 0  #: offered as devices of dynamic resource allocation instead
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Mapping[str, str] = field(default_factory=dict)  #: each keeps pods away (NoSchedule)


def parse_nodes(text: str) -> dict[str, NodeSpec]:
    """Nodes by name from ``a:cpu=8,mem=32,gpu=4;b:dra=2,label/zone=x,taint/gpu=yes``.

    Raises ``ValueError`` that names the part it does not understand.
    """
    nodes: dict[str, NodeSpec] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, _, items = part.partition(":")
        if not name or name in nodes:
            raise ValueError(f"node {part!r}: the name is missing or taken")
        nodes[name] = _parse_node(name, items)
    if not nodes:
        raise ValueError("no node")
    return nodes


def _parse_node(name: str, items: str) -> NodeSpec:
    numbers: dict[str, int] = {}
    maps: dict[str, dict[str, str]] = {"label": {}, "taint": {}}
    for item in filter(None, (item.strip() for item in items.split(","))):
        key, _, value = item.partition("=")
        kind, slash, rest = key.partition("/")
        if slash and kind in maps:
            maps[kind][rest] = value
        elif key in ("cpu", "mem", "gpu", "dra") and value.isdigit():
            numbers[key] = int(value)
        else:
            raise ValueError(
                f"node {name!r}: {item!r} is none of cpu=N, mem=N, gpu=N, dra=N, "
                "label/KEY=VALUE, taint/KEY=VALUE"
            )
    return NodeSpec(name, **numbers, labels=maps["label"], taints=maps["taint"])


def quantity(text: str | int | float) -> Decimal:
    """The number that a Kubernetes quantity stands for: ``500m`` is 0.5, ``1Ki`` is 1024."""
    match = re.fullmatch(r"([+-]?\d+\.?\d*|\.\d+)([A-Za-z]*)", str(text))
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"{text!r} is no quantity")
    return Decimal(match[1]) * _SUFFIXES[match[2]]


def node_object(spec: NodeSpec) -> dict[str, Any]:
    """What a kubelet creates when it registers."""
    labels = {
        "kubernetes.io/hostname": spec.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        **spec.labels,
    }
    taints = [{"key": k, "value": v, "effect": "NoSchedule"} for k, v in spec.taints.items()]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": spec.name, "labels": labels},
        "spec": {"taints": taints},
    }


def node_status(spec: NodeSpec, address: str, at: str) -> dict[str, Any]:
    """The status of a healthy node; ``at`` is the time of its heartbeat."""
    capacity = {
        "cpu": str(spec.cpu),
        "memory": f"{spec.mem}Gi",
        "pods": "110",
        "ephemeral-storage": "100Gi",
        **({GPU: str(spec.gpu)} if spec.gpu else {}),
    }
    unknown = ("machineID", "systemUUID", "bootID", "kernelVersion", "kubeProxyVersion")
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": spec.name},
        ],
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "lastHeartbeatTime": at,
                "lastTransitionTime": at,
            }
        ],
        "nodeInfo": {
            **dict.fromkeys(unknown, ""),
            "kubeletVersion": "v1.34.4",
            "osImage": "bed",
            "containerRuntimeVersion": "bed://1",
            "architecture": "amd64",
            "operatingSystem": "linux",
        },
    }
