"""What every reader of cluster queues shares: the reading, the pool's own part, walks to the root.

All amounts are GPUs, or units of whatever resource stands for one. Work of the pool's own
RayCluster is left out of ``running`` and ``pending``: the pool counts that itself, and better.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from firepool_ray.config.quantities import number
from firepool_ray.errors import KubeError
from firepool_ray.kube.api import Kind, Kube, Object
from firepool_ray.kube.nodes import CLUSTER_LABEL
from firepool_ray.kube.watching import Watched

#: One watch request of queues lives so long: they change seldom, and every request counts.
WATCH_S = 120.0
#: KAI's share of a GPU, which is in no resource of the pod.
_FRACTION, _FRACTIONS = "gpu-fraction", "gpu-fraction-num-devices"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a cluster queue grants, and what other work uses of it. None: it says nothing."""

    quota: float | None = None  #: entitled to; inf: without bound
    limit: float | None = None  #: never more than
    weight: float | None = None  #: share of what others leave
    running: float = 0.0
    pending: float = 0.0
    age_s: float = 0.0  #: how old this may be
    source: str = ""  #: who says so, for people


@dataclass(frozen=True)
class Own:
    """The pool's RayCluster and its pods as last heard."""

    namespace: str
    cluster: str
    pods: Callable[[], Iterable[Object]]

    def owns(self, item: Object) -> bool:
        """Whether the object belongs to that RayCluster."""
        metadata = item["metadata"]
        return metadata.get("namespace") == self.namespace and any(
            owner["kind"] == "RayCluster" and owner["name"] == self.cluster
            for owner in metadata.get("ownerReferences") or ()
        )

    def use(self, resource: str, belongs: Callable[[Object], bool]) -> tuple[float, float]:
        """(GPUs of placed pods, GPUs of waiting pods), of the pods that belong to the queue."""
        running = pending = 0.0
        for pod in self.pods():
            labels = pod["metadata"].get("labels") or {}
            ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if ended or labels.get(CLUSTER_LABEL) != self.cluster or not belongs(pod):
                continue
            if pod.get("spec", {}).get("nodeName"):
                running += gpus_of(pod.get("spec", {}), pod["metadata"], resource)
            else:
                pending += gpus_of(pod.get("spec", {}), pod["metadata"], resource)
        return running, pending


class Source(ABC):
    """One queue system, for all of the pool's queues that follow it."""

    @abstractmethod
    def start(self) -> None:
        """Begin to listen. Blocks at most as long as one call of the API server."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def read(self, queue: str) -> Reading:
        """As last heard. Raises ``KubeError`` that says why nothing is known."""


class Watches:
    """Several kinds of objects, watched together: they are as old as the oldest of them."""

    def __init__(
        self,
        kube: Kube,
        kinds: Iterable[Kind],
        on_change: Callable[[], None],
        trim: Mapping[str, Callable[[Object], Object]] | None = None,
        **where: str,
    ) -> None:
        """``trim``: by kind, what is kept of an object."""
        trim = trim or {}
        self._watched = {
            kind.kind: Watched(
                kube,
                kind,
                on_change=lambda change, item: on_change(),
                watch_s=WATCH_S,
                trim=trim.get(kind.kind),
                **({"namespace": "*"} if kind.namespaced else {}) | where,
            )
            for kind in kinds
        }

    def start(self) -> None:
        for each in self._watched.values():
            each.start()

    def stop(self) -> None:
        for each in self._watched.values():
            each.stop()

    def get(self, kind: str, name: str, namespace: str = "") -> Object | None:
        return self._watched[kind].get(name, namespace)

    def objects(self, kind: str) -> list[Object]:
        """Empty for a kind that is not watched."""
        return self._watched[kind].objects() if kind in self._watched else []

    def age_s(self) -> float:
        """inf before everything was listed once."""
        return max(each.age_s() for each in self._watched.values())

    def problem(self) -> str:
        """Why something cannot be read; "" while it can, or is about to be."""
        return next((each.error for each in self._watched.values() if each.error), "")


class WatchedSource(Source):
    """A source of which everything is watched. ``system``: its name, for people."""

    system: ClassVar[str]

    def __init__(self, own: Own, resource: str, watches: Watches) -> None:
        self._own = own
        self._resource = resource
        self._watches = watches

    def start(self) -> None:
        self._watches.start()

    def stop(self) -> None:
        self._watches.stop()

    def _age_s(self) -> float:
        """Raises ``KubeError`` before everything was read once."""
        age_s = self._watches.age_s()
        if age_s == math.inf:
            raise KubeError(self._watches.problem() or f"{self.system} has not been read yet")
        return age_s


def served(kube: Kube, kinds: Iterable[Kind]) -> Kind | None:
    """The first of them that the cluster knows."""
    return next((kind for kind in kinds if kube.serves(kind)), None)


def gpus_of(spec: Mapping[str, Any], metadata: Mapping[str, Any], resource: str) -> float:
    """What one pod of that spec asks for."""
    annotations = metadata.get("annotations") or {}
    if _FRACTION in annotations:
        return number(annotations[_FRACTION]) * number(annotations.get(_FRACTIONS, "1"))
    asked = 0.0
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        asked += number(both.get(resource, 0))
    return asked


def amount(resources: Mapping[str, Any] | None, resource: str) -> float | None:
    """Of a list of resources; None where it does not name this one."""
    found = (resources or {}).get(resource)
    return None if found is None else number(found)


def to_root(name: str, parent_of: Callable[[str], str]) -> Iterator[str]:
    """The queue, its parent, and so on; a circle ends where it closes."""
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        yield name
        name = parent_of(name)


def least(limits: Iterable[float | None]) -> float | None:
    """The tightest of several bounds; None where there is none."""
    return min((limit for limit in limits if limit is not None), default=None)


def bounded(value: float) -> float:
    """A number of a queue in which negative means without bound."""
    return math.inf if value < 0 else value


def left(total: float, own: float) -> float:
    """What others use. Both were heard at different moments, so own may briefly be more."""
    return max(0.0, total - own)
