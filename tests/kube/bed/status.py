"""What a kubelet reports of a pod, as a strategic merge patch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.kube.bed.containers import Container, Ended


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not run yet, or not again."""

    reason: str = "ContainerCreating"
    message: str = ""


def container_status(container: Container, waiting: Waiting | None) -> dict[str, Any]:
    """Of one container; ``waiting`` counts only while it does not run."""
    spec, ended = container.spec, container.ended
    running = {"startedAt": container.started_at} if container.running else None
    idle = waiting if running is None else None
    over = ended if running is None and idle is None else None
    last = ended if over is None else None
    return {
        "name": container.name,
        "ready": container.ready,
        "started": container.started,
        "restartCount": max(container.runs - 1, 0),
        "image": spec.get("image", ""),
        "imageID": spec.get("image", ""),
        "containerID": container.container_id if container.runs else "",
        # a merge keeps what it is not told of: the other states must be said to be gone
        "state": {
            "running": running,
            "waiting": {"reason": idle.reason, "message": idle.message} if idle else None,
            "terminated": _terminated(over) if over else None,
        },
        "lastState": {"terminated": _terminated(last) if last else None},
    }


def unmade_status(spec: Mapping[str, Any], waiting: Waiting) -> dict[str, Any]:
    """Of a container that has not been tried yet."""
    return {
        "name": spec["name"],
        "ready": False,
        "started": False,
        "restartCount": 0,
        "image": spec.get("image", ""),
        "imageID": "",
        "state": {"waiting": {"reason": waiting.reason, "message": waiting.message}},
    }


def conditions(
    *, initialized: bool, ready: bool, phase: str, before: Sequence[Mapping[str, Any]], at: str
) -> list[dict[str, Any]]:
    """A pod's conditions; one that did not change keeps its time."""
    old = {condition["type"]: condition for condition in before}
    found = []
    for kind, holds in {
        "PodReadyToStartContainers": True,
        "Initialized": initialized,
        "ContainersReady": ready,
        "Ready": ready,
    }.items():
        status = "True" if holds else "False"
        same = kind in old and old[kind]["status"] == status
        condition = {
            "type": kind,
            "status": status,
            "lastTransitionTime": old[kind]["lastTransitionTime"] if same else at,
        }
        if not holds:
            ended = phase in ("Succeeded", "Failed")
            condition["reason"] = "PodCompleted" if ended else "ContainersNotReady"
        found.append(condition)
    return found


def _terminated(ended: Ended) -> dict[str, Any]:
    return {
        "exitCode": ended.exit_code,
        "reason": ended.reason,
        "message": ended.message,
        "startedAt": ended.started_at,
        "finishedAt": ended.finished_at,
        "containerID": ended.container_id,
    }
