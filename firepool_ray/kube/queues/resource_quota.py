"""A ResourceQuota of a namespace as a queue: what it allows is quota and limit at once.

It counts pods from their creation, so what waits for a node counts as running; what the quota
refused is seen by nobody.
"""

from __future__ import annotations

from collections.abc import Callable

from firepool_ray.errors import KubeError
from firepool_ray.kube.api import RESOURCE_QUOTA, Kube
from firepool_ray.kube.queues.base import Own, Reading, WatchedSource, Watches, amount, least, left


class ResourceQuotas(WatchedSource):
    system = "the ResourceQuota"

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        own: Own,
        resource: str,
        on_change: Callable[[], None],
    ) -> None:
        self._namespace = namespace
        super().__init__(
            own, resource, Watches(kube, [RESOURCE_QUOTA], on_change, namespace=namespace)
        )

    def read(self, queue: str) -> Reading:
        """``queue``: "namespace/name"."""
        age_s = self._age_s()
        name = queue.partition("/")[2]
        found = self._watches.get("ResourceQuota", name, self._namespace)
        if found is None:
            raise KubeError(f"there is no ResourceQuota {queue!r}")
        keys = (f"requests.{self._resource}", f"limits.{self._resource}")
        hard = found.get("spec", {}).get("hard") or {}
        allowed = least(amount(hard, key) for key in keys)
        if allowed is None:
            raise KubeError(f"ResourceQuota {queue!r} says nothing of {keys[0]}: add it")
        used = found.get("status", {}).get("used") or {}
        ours = 0.0
        if self._own.namespace == self._namespace:
            ours = sum(self._own.use(self._resource, lambda pod: True))
        return Reading(
            quota=allowed,
            limit=allowed,
            running=left(max(amount(used, key) or 0.0 for key in keys), ours),
            age_s=age_s,
            source=f"ResourceQuota {queue}",
        )
