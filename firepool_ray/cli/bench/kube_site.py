"""A pool of the benchmark on somebody's cluster: brought up, driven by Ray jobs, taken away."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from firepool_ray.config import PoolConfig
from firepool_ray.errors import KubeError, PoolUnavailable
from firepool_ray.kube import deploy
from firepool_ray.kube.api import POD, Kube
from firepool_ray.kube.nodes import CLUSTER_LABEL, GROUP_LABEL, PodFacts, facts_of
from firepool_ray.kube.raycluster import DRIVER_RESOURCE

PROFILE = "bench"
QUEUE = "bench"
UP_S, DOWN_S = 180.0, 120.0
LOOK_S = 0.5
#: Ray's dashboard, and the module that it runs in a pod.
_PORT = 8265
_DRIVER = "firepool_ray.cli.bench.kube_driver"
_ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})

Row = dict[str, Any]


@dataclass(frozen=True)
class Where:
    """What of the cluster the benchmark may use."""

    kube: Kube
    base: dict[str, Any]  #: the ``kubernetes`` part of a pool file: image, node selector, ...
    gpu_resource: str = "nvidia.com/gpu"

    def config(
        self,
        *,
        lanes_per_pod: int = 1,
        kubernetes: Row | None = None,
        follows: str = "",
        **profile: Any,
    ) -> PoolConfig:
        """A pool with one profile; workers are held for a minute unless it says otherwise.

        ``follows``: the cluster queue of its queue.
        """
        given = {
            "gpus": 1,
            "cpus": 0.25,
            "keep_alive": "fixed:60",
            "lane_keep_s": 120.0,
            "pod": {"lanes": lanes_per_pod, "gpu_resource": self.gpu_resource, "memory": "6Gi"},
            **profile,
        }
        ours = {
            "name": "firepool-bench",
            "network_policy": False,  # the API server's proxy is how drivers are started
            "drivers": {"max_pods": 1, "memory": "2Gi"},
            "drain_s": 15,
            "env": {"RAY_JOB_STOP_WAIT_TIME_S": "120"},  # a driver ends its jobs first
        }
        return PoolConfig.from_dict(
            {
                "profiles": {PROFILE: given},
                "queues": {QUEUE: {"cluster_queue": follows}},
                "kubernetes": {**ours, **self.base, **(kubernetes or {})},
            }
        )


class Site:
    """A pool that stands."""

    def __init__(self, where: Where, pool: PoolConfig) -> None:
        assert pool.kubernetes is not None
        self.kube = where.kube
        self.pool = pool
        self._name = pool.kubernetes.name

    # ------------------------------------------------------------ drivers

    def drive(self, task: str, timeout_s: float = 300.0, **arguments: Any) -> list[Row]:
        """Run a task of ``kube_driver`` in the cluster and return what it told.

        Raises ``PoolUnavailable`` with the end of its log if it fails.
        """
        return self.finish(self.begin(task, **arguments), timeout_s)

    def begin(self, task: str, **arguments: Any) -> str:
        """Start a task; its Ray job."""
        words = ["python", "-m", _DRIVER, task, json.dumps(arguments)]
        answer = self._jobs(
            "POST",
            "",
            {"entrypoint": shlex.join(words), "entrypoint_resources": {DRIVER_RESOURCE: 1}},
        )
        return str(answer["submission_id"])

    def finish(self, job: str, timeout_s: float) -> list[Row]:
        rows, status, log = self._await_end(job, timeout_s)
        if status != "SUCCEEDED" or not (rows and rows[-1].get("done")):
            raise PoolUnavailable(f"{job} ended as {status}: {log[-1500:]}")
        return rows

    def stop(self, job: str, timeout_s: float) -> list[Row]:
        """Have a task come to its end, which it does once its jobs have ended."""
        self._jobs("POST", f"{job}/stop")
        rows, status, log = self._await_end(job, timeout_s)
        if not (rows and rows[-1].get("done")):
            raise PoolUnavailable(f"{job} ended as {status} before its jobs had: {log[-1500:]}")
        return rows

    def _await_end(self, job: str, timeout_s: float) -> tuple[list[Row], str, str]:
        deadline = time.monotonic() + timeout_s
        status = ""
        while status not in _ENDED:
            if time.monotonic() > deadline:
                raise PoolUnavailable(f"{job} is {status or 'unknown'} after {timeout_s:g} s")
            time.sleep(LOOK_S)
            try:
                status = str(self._jobs("GET", job)["status"])
            except KubeError:  # the head may be away
                continue
        log = self._log(job)
        return rows_of(log + "\n"), status, log

    def told(self, job: str) -> list[Row]:
        """What a task has told so far."""
        return rows_of(self._log(job))

    def _log(self, job: str) -> str:
        return str(self._jobs("GET", f"{job}/logs")["logs"])

    def await_running(self, job: str, timeout_s: float = 120.0) -> None:
        """Until its driver has begun."""
        deadline = time.monotonic() + timeout_s
        while str(self._jobs("GET", job)["status"]) == "PENDING":
            if time.monotonic() > deadline:
                raise PoolUnavailable(f"{job} has not begun after {timeout_s:g} s")
            time.sleep(LOOK_S)

    def _jobs(self, method: str, path: str, body: Any = None) -> Row:
        service = f"{self._name}-head-svc"
        return self.kube.through(service, _PORT, method, f"/api/jobs/{path}", body)

    # ------------------------------------------------------------ pods

    def lane_pods(self) -> list[PodFacts]:
        """Those that carry lanes and are to stay."""
        labels = f"{CLUSTER_LABEL}={self._name},{GROUP_LABEL}={PROFILE}"
        found, _ = self.kube.list(POD, labels=labels)
        return [facts for facts in map(facts_of, found) if not facts.leaving and not facts.ended]

    def head_pod(self) -> str:
        labels = f"{CLUSTER_LABEL}={self._name},ray.io/node-type=head"
        found, _ = self.kube.list(POD, labels=labels)
        return str(found[0]["metadata"]["name"])

    def delete(self, pod: str, grace_s: int | None = None) -> None:
        """``grace_s`` None: as an administrator would; 0: killed."""
        self.kube.delete(POD, pod, grace_s=grace_s)


def rows_of(log: str) -> list[Row]:
    """The complete rows in a log; its last line may still be on its way."""
    whole = log[: log.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


@contextmanager
def standing(where: Where, pool: PoolConfig) -> Iterator[Site]:
    """The pool, from nothing to nothing."""
    try:
        deploy.up(where.kube, pool, timeout_s=UP_S, say=lambda text: None)
        yield Site(where, pool)
    finally:
        deploy.down(where.kube, pool, timeout_s=DOWN_S, say=lambda text: None)
