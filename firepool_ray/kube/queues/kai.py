"""NVIDIA KAI scheduler: ``scheduling.run.ai/v2`` Queues, whose status sums their PodGroups.

In KAI's files -1 means without bound, and a limit that is not set grants nothing. A parent's limit
holds for its children together, so the tightest on the way to the root counts.
"""

from __future__ import annotations

from collections.abc import Callable

from firepool_ray.config.quantities import number
from firepool_ray.errors import KubeError
from firepool_ray.kube.admission import KAI_KINDS, KAI_QUEUE
from firepool_ray.kube.api import Kube, Object
from firepool_ray.kube.queues.base import (
    Own,
    Reading,
    WatchedSource,
    Watches,
    amount,
    bounded,
    least,
    left,
    to_root,
)

#: KAI counts all GPUs under this name, shares of one too.
RESOURCE = "nvidia.com/gpu"


class Kai(WatchedSource):
    system = "KAI"

    def __init__(self, kube: Kube, own: Own, resource: str, on_change: Callable[[], None]) -> None:
        super().__init__(own, resource, Watches(kube, KAI_KINDS, on_change))

    def read(self, queue: str) -> Reading:
        age_s = self._age_s()
        queues = {item["metadata"]["name"]: item for item in self._watches.objects("Queue")}
        if queue not in queues:
            raise KubeError(f"there is no KAI Queue {queue!r}")

        def parent_of(name: str) -> str:
            return str(queues.get(name, {}).get("spec", {}).get("parentQueue", ""))

        def is_in_queue(pod: Object) -> bool:
            mine = (pod["metadata"].get("labels") or {}).get(KAI_QUEUE, "")
            return queue in to_root(mine, parent_of)

        status = queues[queue].get("status", {})
        allocated = amount(status.get("allocated"), RESOURCE) or 0.0
        requested = amount(status.get("requested"), RESOURCE) or 0.0
        running, pending = self._own.use(self._resource, is_in_queue)
        mine = _gpus(queues[queue])
        path = [name for name in to_root(queue, parent_of) if name in queues]
        weight = mine.get("overQuotaWeight")
        return Reading(
            quota=bounded(number(mine.get("quota", 0))),
            limit=least(bounded(number(_gpus(queues[name]).get("limit", 0))) for name in path),
            weight=max(1e-3, number(weight)) if weight is not None else None,
            running=left(allocated, running),
            pending=left(requested - allocated, pending),
            age_s=age_s,
            source=f"KAI Queue {queue}",
        )


def _gpus(queue: Object) -> Object:
    resources = queue.get("spec", {}).get("resources") or {}
    return dict(resources.get("gpu") or {})
