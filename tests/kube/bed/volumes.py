"""Volumes of a pod as folders, and the mounts that put them into its containers."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.kube.bed.environment import Facts, field_of, read_map
from tests.kube.bed.process import BedError
from tests.kube.bed.rest import Rest
from tests.kube.bed.sandbox import OWN

_TOKEN_S = 7200


class MountPoints:
    """Folders made on this machine because pods mount something there; removed at the end."""

    def __init__(self, own: Iterable[str] = (*OWN, "/var/run")) -> None:
        self._own = tuple(own)  #: pods have these to themselves and make what is below
        self._made: list[Path] = []
        self._lock = threading.Lock()

    def make(self, path: Path, *, is_file: bool) -> None:
        if any(path.is_relative_to(own) for own in self._own):
            return
        with self._lock:
            missing = [p for p in (path, *path.parents) if not p.exists()]
            for folder in reversed(missing):
                if folder == path and is_file:
                    folder.touch()
                else:
                    folder.mkdir()
                self._made.append(folder)

    def remove(self) -> None:
        for path in reversed(self._made):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        self._made.clear()


def fill_volumes(rest: Rest, pod: Mapping[str, Any], facts: Facts, folder: Path) -> dict[str, Path]:
    """Each volume's folder by name; raises ``ApiError`` if what it is made of is missing."""
    found = {}
    for volume in pod["spec"].get("volumes", ()):
        if "hostPath" in volume:
            found[volume["name"]] = Path(volume["hostPath"]["path"])
            continue
        if "persistentVolumeClaim" in volume:
            name = volume["persistentVolumeClaim"]["claimName"]
            found[volume["name"]] = _bound(rest, pod["metadata"]["namespace"], name)
            continue
        target = folder / volume["name"]
        target.mkdir(parents=True, exist_ok=True)
        for source in _sources(volume):
            _fill(rest, pod, facts, source, target)
        found[volume["name"]] = target
    return found


def mount_script(
    container: Mapping[str, Any], volumes: Mapping[str, Path], points: MountPoints
) -> str:
    """Shell lines that bind a container's volumes to where it wants them."""
    lines = []
    for mount in container.get("volumeMounts", ()):
        at = mount["mountPath"].rstrip("/")
        if at in OWN:
            continue  # the pod has its own there already
        source = volumes[mount["name"]]
        if mount.get("subPath"):
            source = source / mount["subPath"]
        is_file = source.is_file()
        if not source.exists():
            source.mkdir(parents=True)
        points.make(Path(at), is_file=is_file)
        where, what = shlex.quote(at), shlex.quote(str(source))
        if is_file:
            lines.append(f"mkdir -p {shlex.quote(os.path.dirname(at))}; touch {where}")
        else:
            lines.append(f"mkdir -p {where}")
        lines.append(f"mount --bind {what} {where}")
        if mount.get("readOnly"):
            lines.append(f"mount -o remount,bind,ro {where}")
    return "\n".join(lines)


def _bound(rest: Rest, namespace: str, claim: str) -> Path:
    """The folder behind a claim: the scheduler waits until a volume is bound to it."""
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}"
    volume = rest.get(f"/api/v1/persistentvolumes/{rest.get(path)['spec']['volumeName']}")
    return Path(volume["spec"]["hostPath"]["path"])


def _sources(volume: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """The one or more things that a volume is filled from; none for an empty folder."""
    if "projected" in volume:
        return volume["projected"].get("sources", ())
    known = {"configMap", "secret", "downwardAPI"} & volume.keys()
    if not known and "emptyDir" not in volume:
        raise BedError(f"volume {volume['name']}: a bed has no {sorted(volume.keys() - {'name'})}")
    return [{key: volume[key]} for key in known]


def _fill(
    rest: Rest, pod: Mapping[str, Any], facts: Facts, source: Mapping[str, Any], target: Path
) -> None:
    space = pod["metadata"]["namespace"]
    for kind, plural in (("configMap", "configmaps"), ("secret", "secrets")):
        if kind in source:
            data = read_map(rest, space, plural, source[kind])
            items = source[kind].get("items")
            paths = {i["path"]: data[i["key"]] for i in items} if items else data
            for path, content in paths.items():
                _write(target / path, content)
    if "serviceAccountToken" in source:
        wanted = source["serviceAccountToken"]
        spec: dict[str, Any] = {"expirationSeconds": _TOKEN_S}
        if "audience" in wanted:
            spec["audiences"] = [wanted["audience"]]
        account = pod["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{space}/serviceaccounts/{account}/token"
        token = rest.post(path, {"spec": spec})["status"]["token"]
        _write(target / wanted["path"], token.encode())
    for item in source.get("downwardAPI", {}).get("items", ()):
        value = field_of(pod, facts, item["fieldRef"]["fieldPath"])
        _write(target / item["path"], value.encode())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
