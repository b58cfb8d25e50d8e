"""Queues of the cluster, read so that the pool's queues can follow them.

Kueue, KAI, Volcano and ResourceQuotas are watched, YuniKorn is asked. One source serves all of the
pool's queues that follow its kind. Used by ``firepool_ray.runtime.signals``, which turns readings
into events of the core; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from firepool_ray.config.kubernetes import parse_queue
from firepool_ray.kube.api import Kube
from firepool_ray.kube.queues.base import Own, Reading, Source
from firepool_ray.kube.queues.kai import Kai
from firepool_ray.kube.queues.kueue import Kueue
from firepool_ray.kube.queues.resource_quota import ResourceQuotas
from firepool_ray.kube.queues.volcano import Volcano
from firepool_ray.kube.queues.yunikorn import YuniKorn

__all__ = ["Own", "Queues", "Reading"]


class Queues:
    """The cluster queues that a pool follows. ``on_change`` is called on threads, often."""

    def __init__(
        self,
        kube: Kube,
        follow: Mapping[str, str],
        own: Own,
        *,
        resource: str,
        yunikorn: str,
        on_change: Callable[[], None],
    ) -> None:
        """``follow``: pool queue -> "kueue:NAME" and the like. ``resource``: what a GPU is called.

        ``yunikorn``: "host:port" of its REST API.
        """
        self._queues = {name: parse_queue(text) for name, text in follow.items()}
        self._sources: dict[tuple[str, str], Source] = {}
        self._started: set[tuple[str, str]] = set()
        for kind, queue in self._queues.values():
            key = self._key(kind, queue)
            if key not in self._sources:
                self._sources[key] = _open(key, kube, own, resource, yunikorn, on_change)

    def start(self) -> None:
        """Begin to listen. Blocks at most as long as a few calls of the API server.

        Raises ``KubeError`` where it does not answer; what did not start then starts next time.
        """
        for key, source in self._sources.items():
            if key not in self._started:
                source.start()
                self._started.add(key)

    def stop(self) -> None:
        for key in self._started:
            self._sources[key].stop()

    def names(self) -> list[str]:
        """The pool's queues that follow one of the cluster."""
        return list(self._queues)

    def read(self, name: str) -> Reading:
        """As last heard. Raises ``KubeError`` that says why nothing is known."""
        kind, queue = self._queues[name]
        return self._sources[self._key(kind, queue)].read(queue)

    @staticmethod
    def _key(kind: str, queue: str) -> tuple[str, str]:
        """One source per kind; ResourceQuotas are read per namespace."""
        return kind, queue.partition("/")[0] if kind == "quota" else ""


def _open(
    key: tuple[str, str],
    kube: Kube,
    own: Own,
    resource: str,
    yunikorn: str,
    on_change: Callable[[], None],
) -> Source:
    kind, namespace = key
    if kind == "quota":
        return ResourceQuotas(kube, namespace, own, resource, on_change)
    if kind == "yunikorn":
        return YuniKorn(yunikorn, own, resource, on_change)
    if kind == "kueue":
        return Kueue(kube, own, resource, on_change)
    if kind == "kai":
        return Kai(kube, own, resource, on_change)
    assert kind == "volcano", kind
    return Volcano(kube, own, resource, on_change)
