"""Volcano: ``scheduling.volcano.sh/v1beta1`` Queues, and PodGroups for what waits.

``deserved`` is what a queue is entitled to (the capacity plugin), else what ``guarantee`` reserves
for it; a queue of the proportion plugin has neither, only its weight. ``capability`` is the limit,
its own and its parents'. A queue that is not open grants nothing new.
"""

from __future__ import annotations

from collections.abc import Callable

from firepool_ray.config.quantities import number
from firepool_ray.errors import KubeError
from firepool_ray.kube.admission import VOLCANO_KINDS, VOLCANO_POD_GROUP_KINDS, VOLCANO_POD_QUEUE
from firepool_ray.kube.api import Kube, Object
from firepool_ray.kube.queues.base import (
    Own,
    Reading,
    WatchedSource,
    Watches,
    amount,
    least,
    left,
    to_root,
)

_ROOT = "root"
#: Phases of a PodGroup whose pods wait.
_WAITING = frozenset({"Pending", "Inqueue", ""})


class Volcano(WatchedSource):
    system = "Volcano"

    def __init__(self, kube: Kube, own: Own, resource: str, on_change: Callable[[], None]) -> None:
        kinds = (*VOLCANO_KINDS, *VOLCANO_POD_GROUP_KINDS)
        watches = Watches(kube, kinds, on_change, trim={"PodGroup": self._trim})
        super().__init__(own, resource, watches)

    def read(self, queue: str) -> Reading:
        age_s = self._age_s()
        queues = {item["metadata"]["name"]: item for item in self._watches.objects("Queue")}
        if queue not in queues:
            raise KubeError(f"there is no Volcano Queue {queue!r}")

        def parent_of(name: str) -> str:
            above = _ROOT if name != _ROOT else ""
            return str(queues.get(name, {}).get("spec", {}).get("parent") or above)

        def within(name: str) -> bool:
            return queue in to_root(name, parent_of)

        def is_in_queue(pod: Object) -> bool:
            return within((pod["metadata"].get("annotations") or {}).get(VOLCANO_POD_QUEUE, ""))

        spec, status = queues[queue].get("spec", {}), queues[queue].get("status", {})
        state = status.get("state") or "Open"
        path = [queues[name]["spec"] for name in to_root(queue, parent_of) if name in queues]
        limit = least(amount(each.get("capability"), self._resource) for each in path)
        quota = amount(spec.get("deserved"), self._resource)
        if quota is None:
            quota = amount((spec.get("guarantee") or {}).get("resource"), self._resource)
        running, _ = self._own.use(self._resource, is_in_queue)
        source = f"Volcano Queue {queue}"
        return Reading(
            quota=quota,
            limit=limit if state == "Open" else 0.0,
            weight=number(spec.get("weight", 1)),
            running=left(amount(status.get("allocated"), self._resource) or 0.0, running),
            pending=sum(
                group["gpus"]
                for group in self._watches.objects("PodGroup")
                if within(group["queue"])
            ),
            age_s=age_s,
            source=source if state == "Open" else f"{source}, {state.lower()}",
        )

    def _trim(self, group: Object) -> Object:
        spec, phase = group.get("spec", {}), group.get("status", {}).get("phase", "")
        waits = phase in _WAITING and not self._own.owns(group)
        asked = amount(spec.get("minResources"), self._resource) or 0.0
        metadata = group["metadata"]
        return {
            "metadata": {
                key: metadata.get(key) for key in ("name", "namespace", "resourceVersion")
            },
            "queue": spec.get("queue") or "default",
            "gpus": asked if waits else 0.0,
        }
