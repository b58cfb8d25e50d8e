"""An API server of a test: lists and watches of plain dicts, changed by the test at will."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from firepool_ray.errors import KubeError
from firepool_ray.kube.api import Kind, Object


class FakeKube:
    """Stands in for ``Kube``: reading only. ``requests`` counts what a server would see."""

    def __init__(self, namespace: str = "default") -> None:
        self.namespace = namespace
        self.requests: list[str] = []
        self.failure: KubeError | None = None
        #: API versions that this server does not know.
        self.unserved: set[str] = set()
        self._objects: dict[str, dict[str, Object]] = {}
        self._version = 0
        self._watches: list[tuple[str, queue.Queue[Any]]] = []
        self._lock = threading.Lock()

    def put(self, kind: Kind, item: Object) -> None:
        """Create or change an object; watches hear of it."""
        with self._lock:
            self._version += 1
            item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._version)}}
            known = self._objects.setdefault(kind.plural, {})
            change = "MODIFIED" if item["metadata"]["name"] in known else "ADDED"
            known[item["metadata"]["name"]] = item
            self._tell(kind, change, item)

    def remove(self, kind: Kind, name: str, *, silent: bool = False) -> None:
        """``silent``: no watch hears of it, as while the connection was away."""
        with self._lock:
            self._version += 1
            item = self._objects[kind.plural].pop(name)
            if not silent:
                self._tell(kind, "DELETED", item)

    def watching(self, plural: str) -> bool:
        """Whether somebody watches it now."""
        return any(watched == plural for watched, _ in self._watches)

    def break_watches(self, error: KubeError) -> None:
        for _, heard in self._watches:
            heard.put(error)
        self._watches.clear()

    def _tell(self, kind: Kind, change: str, item: Object) -> None:
        for plural, heard in self._watches:
            if plural == kind.plural:
                heard.put((change, item))

    def serves(self, kind: Kind) -> bool:
        return kind.api_version not in self.unserved

    def list(self, kind: Kind, **_: str) -> tuple[list[Object], str]:
        self.requests.append(f"list {kind.plural}")
        if self.failure is not None:
            raise self.failure
        with self._lock:
            return list(self._objects.get(kind.plural, {}).values()), str(self._version)

    def watch(self, kind: Kind, resource_version: str, **_: Any) -> Iterator[tuple[str, Object]]:
        self.requests.append(f"watch {kind.plural} from {resource_version}")
        if self.failure is not None:
            raise self.failure
        heard: queue.Queue[Any] = queue.Queue()
        with self._lock:
            for item in self._objects.get(kind.plural, {}).values():
                if int(item["metadata"]["resourceVersion"]) > int(resource_version):
                    heard.put(("MODIFIED", item))
            self._watches.append((kind.plural, heard))
        return self._changes(heard)

    def _changes(self, heard: queue.Queue[Any]) -> Iterator[tuple[str, Object]]:
        while True:
            item = heard.get(timeout=30)
            if isinstance(item, KubeError):
                raise item
            if item is None:
                return
            yield item

    def end_watches(self) -> None:
        """As at the end of their time."""
        for _, heard in self._watches:
            heard.put(None)
        self._watches.clear()
