"""An API server in memory that is written to: what ``deploy`` and ``doctor`` ask a cluster for."""

from __future__ import annotations

import copy
from typing import Any

from firepool_ray.errors import KubeError
from firepool_ray.kube.api import KINDS, Kind, Object, kind_of


class FakeServer:
    """Stands in for ``Kube``. Tests write ``objects`` and read ``calls``.

    ``refused`` holds (verb, plural) that the user may not; ``unserved`` plurals without a CRD.
    """

    def __init__(self, namespace: str = "default") -> None:
        self.namespace = namespace
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.calls: list[str] = []
        self.refused: set[tuple[str, str]] = set()
        self.unserved: set[str] = set()
        self.down: KubeError | None = None
        self._versions = 0

    def put(self, manifest: Object, plural: str = "") -> None:
        """As if it had always been there."""
        metadata = manifest["metadata"]
        kind = KINDS.get(manifest["kind"])
        plural = plural or (kind.plural if kind else manifest["kind"].lower() + "s")
        namespaced = kind is None or kind.namespaced
        where = metadata.get("namespace", self.namespace) if namespaced else ""
        self._versions += 1
        item = copy.deepcopy(manifest)
        item["metadata"].update(resourceVersion=str(self._versions), uid=metadata["name"])
        self.objects[plural, where, metadata["name"]] = item

    def names(self, plural: str) -> list[str]:
        return sorted(name for kind, _, name in self.objects if kind == plural)

    def version(self) -> str:
        if self.down is not None:
            raise self.down
        return "v1.34.4"

    def serves(self, kind: Kind) -> bool:
        return kind.plural not in self.unserved

    def may(self, verb: str, kind: Kind, namespace: str = "") -> bool:
        return (verb, kind.plural) not in self.refused

    def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        self._check("get", kind)
        found = self.objects.get((kind.plural, self._where(kind, namespace), name))
        return copy.deepcopy(found)

    def list(
        self, kind: Kind, *, labels: str = "", fields: str = "", namespace: str = ""
    ) -> tuple[list[Object], str]:
        self._check("list", kind)
        if kind.plural in self.unserved:
            raise KubeError(f"GET {kind.plural}: not found", 404)
        key, _, value = labels.partition("=")
        where = self._where(kind, namespace)
        found = [
            copy.deepcopy(item)
            for (plural, place, _), item in self.objects.items()
            if plural == kind.plural
            and place == where
            and (not labels or item["metadata"].get("labels", {}).get(key) == value)
        ]
        return found, str(self._versions)

    def apply(self, manifest: Object, *, dry_run: bool = False, force: bool = True) -> Object:
        kind = kind_of(manifest)
        self._check("patch", kind)
        if kind.plural in self.unserved:
            raise KubeError(f"PATCH {kind.plural}: the server could not find it", 404)
        metadata = manifest["metadata"]
        self.calls.append(f"{'try' if dry_run else 'apply'} {kind.kind} {metadata['name']}")
        key = (kind.plural, self._where(kind, metadata.get("namespace", "")), metadata["name"])
        living = self.objects.get(key)
        if not dry_run and (living is None or not _holds(living, manifest)):
            status: dict[str, Any] = {k: living[k] for k in ("status",) if living and k in living}
            self.put({**copy.deepcopy(manifest), **status})
        return copy.deepcopy(self.objects.get(key, manifest))

    def patch(self, kind: Kind, name: str, change: Object, namespace: str = "") -> Object:
        self._check("patch", kind)
        key = (kind.plural, self._where(kind, namespace), name)
        living = self.objects[key]
        if change["metadata"]["resourceVersion"] != living["metadata"]["resourceVersion"]:
            raise KubeError(f"patch {name}: the object has been modified", 409)
        self.calls.append(f"patch {kind.kind} {name}")
        self.put(_merged(living, change))
        return copy.deepcopy(self.objects[key])

    def delete(
        self, kind: Kind, name: str, namespace: str = "", grace_s: int | None = None
    ) -> bool:
        self._check("delete", kind)
        self.calls.append(f"delete {kind.kind} {name}")
        key = (kind.plural, self._where(kind, namespace), name)
        return self.objects.pop(key, None) is not None

    def _where(self, kind: Kind, namespace: str) -> str:
        return (namespace or self.namespace) if kind.namespaced else ""

    def _check(self, verb: str, kind: Kind) -> None:
        if (verb, kind.plural) in self.refused:
            raise KubeError(f"{verb} {kind.plural}: forbidden", 403)


def _merged(living: Any, change: Any) -> Any:
    """As a JSON merge patch."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    merged = dict(living) if isinstance(living, dict) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _holds(living: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(living, dict) and all(
            key in living and _holds(living[key], value) for key, value in wanted.items()
        )
    return bool(living == wanted)


def pod(
    cluster: str,
    name: str,
    group: str,
    *,
    ready: bool = True,
    reason: str = "",
    leaving: bool = False,
    made: str = "2026-01-01T00:00:00Z",
    container: Object | None = None,
) -> Object:
    """As the operator makes it; ``reason``: why the scheduler has no place for it."""
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    if reason:
        conditions.append({"type": "PodScheduled", "status": "False", "message": reason})
    metadata: Object = {
        "name": name,
        "creationTimestamp": made,
        "labels": {"ray.io/cluster": cluster, "ray.io/group": group},
    }
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container or {"name": "ray-worker"}]},
        "status": {"phase": "Running" if ready else "Pending", "conditions": conditions},
    }
