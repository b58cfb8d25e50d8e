"""Objects of one kind, kept in memory by one watch: reading them costs the API server nothing.

Used for pods, the RayCluster, its events and queues. One list, then one watch request a minute; a
watch that breaks is taken up again where it stood, or with a new list where that is too old.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

from firepool_ray.errors import KubeError
from firepool_ray.kube.api import Kind, Kube, Object

log = logging.getLogger(__name__)

Change = Literal["ADDED", "MODIFIED", "DELETED"]
#: One watch request lives so long; a connection that died in silence is noticed by then.
WATCH_S = 60.0
#: Pauses after a failure.
BACKOFF_S, BACKOFF_MAX_S = 0.5, 30.0
#: A watch that ends sooner is not taken up again at once: a server in trouble agrees and closes.
BRIEF_S = 1.0
_TOO_OLD = 410


class Watched:
    """Objects by "namespace/name". ``on_change`` is called on the watch's own thread."""

    def __init__(
        self,
        kube: Kube,
        kind: Kind,
        *,
        labels: str = "",
        fields: str = "",
        namespace: str = "",
        on_change: Callable[[Change, Object], None] | None = None,
        watch_s: float = WATCH_S,
        trim: Callable[[Object], Object] | None = None,
    ) -> None:
        """``trim``: what is kept of an object; its ``metadata`` must name and version it."""
        self.kind = kind
        self.error = ""  #: why it cannot be read now
        self._kube = kube
        self._selectors = {"labels": labels, "fields": fields, "namespace": namespace}
        self._on_change = on_change
        self._watch_s = watch_s
        self._trim = trim or (lambda item: item)
        self._objects: dict[str, Object] = {}
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._ready = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"firepool-watch-{kind.plural}", daemon=True
        )

    def start(self) -> Watched:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends with the present watch request; changes are not told any more."""
        self._stopped.set()

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether everything was listed once."""
        return self._ready.wait(timeout_s)

    def objects(self) -> list[Object]:
        """As last heard; not to be changed."""
        with self._lock:
            return list(self._objects.values())

    def get(self, name: str, namespace: str = "") -> Object | None:
        """``namespace`` "": the connection's; for kinds without one it does not matter."""
        key = name
        if self.kind.namespaced:
            key = f"{namespace or self._kube.namespace}/{name}"
        with self._lock:
            return self._objects.get(key)

    def age_s(self) -> float:
        """How old this view may be: 0 while the watch stands, inf before the first list."""
        if not self._ready.is_set():
            return float("inf")
        return 0.0 if not self.error else time.monotonic() - self._read_at

    def _run(self) -> None:
        version, pause_s = "", BACKOFF_S
        while not self._stopped.is_set():
            try:
                version = version or self._list()
                changes = self._open(version)
                pause_s, began = BACKOFF_S, time.monotonic()
                version = self._follow(changes, version)
                if time.monotonic() - began < BRIEF_S:
                    self._stopped.wait(BACKOFF_S)
            except KubeError as error:
                if error.status == _TOO_OLD:
                    version = ""
                    continue
                if not self.error:
                    self._read_at = time.monotonic()
                    log.warning("%s cannot be read: %s", self.kind.plural, error)
                self.error = str(error)
                self._stopped.wait(pause_s)
                pause_s = min(BACKOFF_MAX_S, 2 * pause_s)

    def _list(self) -> str:
        items, version = self._kube.list(self.kind, **self._selectors)
        found = {_key(item): self._trim(item) for item in items}
        with self._lock:
            before, self._objects = self._objects, found
        self.error = ""
        self._ready.set()
        for key, item in before.items():
            if key not in found:
                self._tell("DELETED", item)
        for key, item in found.items():
            if key not in before:
                self._tell("ADDED", item)
            elif _version(before[key]) != _version(item):
                self._tell("MODIFIED", item)
        return version

    def _open(self, version: str) -> Iterator[tuple[str, Object]]:
        found = self._kube.watch(self.kind, version, timeout_s=self._watch_s, **self._selectors)
        self.error = ""
        return found

    def _follow(self, changes: Iterator[tuple[str, Object]], version: str) -> str:
        """The version to go on from, when the request has ended."""
        for change, item in changes:
            if self._stopped.is_set():
                break
            version = _version(item) or version
            if change == "BOOKMARK":
                continue
            item = self._trim(item)
            with self._lock:
                if change == "DELETED":
                    self._objects.pop(_key(item), None)
                else:
                    self._objects[_key(item)] = item
            if change in ("ADDED", "MODIFIED", "DELETED"):
                self._tell(change, item)  # type: ignore[arg-type]
        return version

    def _tell(self, change: Change, item: Object) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(change, item)
        except Exception:
            log.exception("a change of %s could not be handled", self.kind.plural)


def _key(item: Object) -> str:
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _version(item: Object) -> str:
    return str(item["metadata"].get("resourceVersion", ""))
