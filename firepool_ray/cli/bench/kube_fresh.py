"""The rival of ``firepool bench --kube``: a plain pod for every job, created and thrown away.

As bare as can be: Python and nothing else, so no Ray to start. The job's first instruction is when
its process says it is, in the container's termination message.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from firepool_ray.cli.bench.kube_plan import Agents, Ran, Rollouts
from firepool_ray.errors import KubeError
from firepool_ray.kube.api import POD, Kube, Object
from firepool_ray.kube.security import pod_security
from firepool_ray.kube.templates import CONTAINER_SECURITY
from firepool_ray.kube.watching import Change, Watched

LABEL = "firepool/bench"
PATIENCE_S = 300.0
_SAID = "/tmp/termination-log"
#: Its second statement is the user's first.
_CODE = (
    "import time; began = time.time(); time.sleep({seconds}); "
    f"open({_SAID!r}, 'w').write(str(began))"
)


class FreshPods:
    """Runs jobs in pods of their own. Safe to use from threads."""

    def __init__(self, kube: Kube, base: dict[str, Any], gpu_resource: str) -> None:
        """``base``: as of the pool under comparison, for its image and where pods may run."""
        self._kube = kube
        self._base = base
        self._gpu_resource = gpu_resource
        self._numbers = itertools.count()
        self._ended: dict[str, tuple[threading.Event, list[Object]]] = {}
        self._watched = Watched(kube, POD, labels=LABEL, on_change=self._heard)

    def __enter__(self) -> FreshPods:
        self._watched.start()
        self._watched.wait_ready(30.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._watched.stop()

    def run(self, seconds: float) -> float:
        """One job that sleeps so long. Returns its start: created to its first instruction.

        Raises ``KubeError`` if its pod failed or never ended.
        """
        name = f"firepool-bench-fresh-{next(self._numbers)}"
        ended, seen = self._ended[name] = threading.Event(), []
        created = time.time()
        self._kube.create(self._pod(name, seconds))
        try:
            if not ended.wait(PATIENCE_S):
                raise KubeError(f"pod {name} has not ended after {PATIENCE_S:g} s")
            (status,) = seen[-1]["status"]["containerStatuses"]
            said = status["state"]["terminated"].get("message", "")
            if seen[-1]["status"]["phase"] != "Succeeded" or not said:
                raise KubeError(f"pod {name} failed: {status['state']}")
        finally:
            self._kube.delete(POD, name, grace_s=0)
        return max(0.0, float(said) - created)

    def agents(self, plan: Agents) -> Ran:
        """All agents side by side, each job in a pod of its own."""
        starts: list[float] = []
        lengths: list[float] = []

        def go(number: int) -> None:
            began = time.monotonic()
            for step in plan.steps[number]:
                starts.append(self.run(step.job_s))
                time.sleep(step.pause_s)
            lengths.append(time.monotonic() - began)

        _together(go, len(plan.steps))
        return Ran(sum(lengths) / len(lengths), starts, {})

    def rollouts(self, plan: Rollouts) -> Ran:
        starts: list[float] = []
        began = time.monotonic()
        for burst in plan.bursts:

            def one(number: int, burst: Sequence[float] = burst) -> None:
                starts.append(self.run(burst[number]))

            _together(one, len(burst))
            time.sleep(plan.update_s)
        return Ran(time.monotonic() - began, starts, {})

    def _heard(self, change: Change, pod: Object) -> None:
        waiting = self._ended.get(pod["metadata"]["name"])
        if waiting is not None and pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            event, seen = waiting
            seen.append(pod)
            event.set()

    def _pod(self, name: str, seconds: float) -> Object:
        limits = {"cpu": "250m", "memory": "256Mi", self._gpu_resource: "1"}
        container: Object = {
            "name": "job",
            "image": self._base.get("image", "rayproject/ray:2.60.0"),
            "command": ["python", "-c", _CODE.format(seconds=seconds)],
            "terminationMessagePath": _SAID,
            "resources": {"limits": limits, "requests": limits},
            "securityContext": CONTAINER_SECURITY,
        }
        spec: Object = {
            "restartPolicy": "Never",
            "securityContext": pod_security(self._base.get("run_as_user")),
            "imagePullSecrets": [
                {"name": name} for name in self._base.get("image_pull_secrets", ())
            ],
            "containers": [container],
            "nodeSelector": self._base.get("node_selector", {}),
            "tolerations": self._base.get("tolerations", []),
        }
        metadata = {"name": name, "labels": {LABEL: "fresh"}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _together(run: Callable[[int], object], count: int) -> None:
    """Raises the first error of any."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            run(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
