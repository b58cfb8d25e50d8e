"""Brings a pool's manifests into a cluster, watches it come up, and takes it away.

All with the rights of whoever calls. Behind ``firepool kube up`` and ``down``; nothing here talks
to Ray.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from firepool_ray.config import PoolConfig
from firepool_ray.errors import KubeError, PoolUnavailable
from firepool_ray.kube import access, draining, merging, standing, templates
from firepool_ray.kube.api import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_MONITOR,
    RAY_CLUSTER,
    RAY_JOB,
    RESOURCE_CLAIM,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Kube,
    Object,
    kind_of,
)
from firepool_ray.kube.manifests import Document, documents, namespace_of, settings_of
from firepool_ray.kube.nodes import PodFacts

Say = Callable[[str], None]

LOOK_S = 1.0
#: So long the pods of a pool that is taken away may take to end.
DOWN_GRACE_S = 5
_COUNTED = ("managedFields", "resourceVersion", "generation")
_FORBIDDEN, _NOT_FOUND = 403, 404
#: Kinds that an older pool file may have had; last applied first.
_OPTIONAL = (
    POD_MONITOR,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    SERVICE,
    DEPLOYMENT,
    RESOURCE_CLAIM,
    PERSISTENT_VOLUME_CLAIM,
    CLUSTER_ROLE_BINDING,
    CLUSTER_ROLE,
    SERVICE_ACCOUNT,
)


# ------------------------------------------------------------ up


def up(kube: Kube, pool: PoolConfig, *, timeout_s: float, say: Say, replace: bool = False) -> None:
    """Apply the pool's manifests and wait until its cluster stands.

    That is: the head, the system pod, and every pod that groups keep at least. Groups that may have
    fewer pods than they have are drained before. ``replace``: pods whose form has changed are
    replaced afterwards, one at a time, those of the head excepted. Raises ``KubeError``
    where something is refused, ``PoolUnavailable`` with Kubernetes' reasons after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    place = namespace_of(pool, kube.namespace)
    name = settings_of(pool).name
    before = _pool_file(kube, pool, place)
    stands = kube.get(RAY_CLUSTER, name, place) is not None
    changed = 0
    for document in documents(pool, kube.namespace):
        changed += _apply(kube, document, deadline, say)
    say(f"{changed} objects were created or changed in namespace {place}.")
    if stands and _pool_file(kube, pool, place) != before:
        say(
            "The running pool keeps its old settings until it ends. A minute from now, end it by "
            f"`kubectl exec -n {place} SYSTEM_POD -- firepool down`: it starts with the new ones."
        )
    _wait_until_up(kube, name, place, deadline, timeout_s, say)
    if stands and replace:
        draining.roll(kube, name, place, deadline=deadline, say=say)
    if stands:
        draining.tell_outdated(kube, name, place, say)


def _pool_file(kube: Kube, pool: PoolConfig, place: str) -> Object | None:
    """What the system pod has mounted, or will have."""
    held = kube.get(CONFIG_MAP, templates.pool_file_name(settings_of(pool)), place)
    return held.get("data") if held is not None else None


def _apply(kube: Kube, document: Document, deadline: float, say: Say) -> bool:
    """Whether anything changed."""
    manifest = document.manifest
    kind, metadata = kind_of(manifest), manifest["metadata"]
    what = f"{kind.kind} {metadata['name']}"
    place = metadata.get("namespace", "")
    living = kube.get(kind, metadata["name"], place)
    if living is not None and kind == RAY_CLUSTER:
        draining.shrink(kube, manifest, living, deadline=deadline, say=say)
        manifest = merging.beside(manifest, kube.get(kind, metadata["name"], place) or living)
    try:
        applied = kube.apply(manifest)
    except KubeError as error:
        raise KubeError(f"{what}: {_advice(kube, kind, error)}", error.status) from None
    if living is not None and _content(living) == _content(applied):
        return False
    say(f"{what} {'created' if living is None else 'changed'}")
    return True


def _content(manifest: Object) -> Object:
    """Without what the server counts and notes about it, such as who set which field."""
    metadata = {k: v for k, v in manifest["metadata"].items() if k not in _COUNTED}
    return {**manifest, "metadata": metadata, "status": None}


def _advice(kube: Kube, kind: Kind, error: KubeError) -> str:
    if error.status == _NOT_FOUND and not kube.serves(kind):
        return f"this cluster does not know {kind.api_version} {kind.kind}: {missing_kind(kind)}"
    if error.status == _FORBIDDEN:
        return f"{error}; ask for the right, or let somebody apply `firepool kube render`"
    return str(error)


def missing_kind(kind: Kind) -> str:
    """What to do where a cluster does not serve the kind."""
    if kind.group == "ray.io":
        return "install Ray's operator, KubeRay 1.5 or newer"
    if kind.group == "monitoring.coreos.com":
        return "install the Prometheus operator, or set kubernetes.monitors: false"
    if kind.group == "resource.k8s.io":
        return "Dynamic Resource Allocation needs Kubernetes 1.34 or newer"
    return "install what serves it"


def _wait_until_up(
    kube: Kube, name: str, place: str, deadline: float, timeout_s: float, say: Say
) -> None:
    told: dict[str, str] = {}
    while True:
        cluster = kube.get(RAY_CLUSTER, name, place)
        pods = standing.pods_of(kube, name, place)
        missing = standing.missing_of(cluster, name, pods)
        for what, why in missing.items():
            if told.get(what) != why:
                say(f"waiting for {what}: {why}")
        for what in [what for what in told if what not in missing]:
            say(f"{what} is ready")
        told = missing
        if not missing:
            say(f"RayCluster {name} is up: {len(pods)} pods.")
            return
        if time.monotonic() >= deadline:
            raise PoolUnavailable(_never_came(kube, name, place, pods, missing, timeout_s))
        time.sleep(LOOK_S)


def _never_came(
    kube: Kube,
    name: str,
    place: str,
    pods: Iterable[PodFacts],
    missing: dict[str, str],
    timeout_s: float,
) -> str:
    lines = [f"RayCluster {name} is not up after {timeout_s:g} s:"]
    lines += [f"  {what}: {why}" for what, why in missing.items()]
    objects = {pod.name for pod in pods if not pod.ready} | {name}
    lines += [f"  {text}" for text in standing.warnings_of(kube, place, objects)]
    cluster = kube.get(RAY_CLUSTER, name, place)
    lines += [f"  {text}" for text in standing.admission_words(kube, cluster, place)]
    lines.append("It goes on trying: see `firepool kube status`, end it with `firepool kube down`.")
    return "\n".join(lines)


# ------------------------------------------------------------ down


def down(kube: Kube, pool: PoolConfig, *, timeout_s: float, say: Say) -> None:
    """Delete what was applied, the RayCluster first, and wait until its pods have gone.

    Raises ``PoolUnavailable`` with what is left after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    name, place = settings_of(pool).name, namespace_of(pool, kube.namespace)
    found = _applied(kube, pool, place)
    if not found:
        say(f"Nothing of pool {name} is in namespace {place}.")
        return
    first = [row for row in found if row[0] in (RAY_JOB, RAY_CLUSTER)]
    _delete(kube, first, say)
    _hasten(kube, name, place)
    _wait_until_gone(kube, first, name, place, deadline, say)
    # Only now: while it ends, Ray clears up in its Redis, and its pods drain.
    _delete(kube, [row for row in found if row not in first], say)
    say(f"Pool {name} has gone from namespace {place}.")


def _applied(kube: Kube, pool: PoolConfig, place: str) -> list[tuple[Kind, str, str]]:
    """(kind, name, namespace), last applied first. Found by label, so that an older pool file's
    are among them; rendered ones that somebody else made are not.
    """
    rendered = [document.manifest for document in documents(pool, kube.namespace)]
    kinds = list(dict.fromkeys([RAY_JOB, *(kind_of(m) for m in reversed(rendered)), *_OPTIONAL]))
    found: dict[tuple[Kind, str, str], None] = {}
    for kind in kinds:
        places = {m["metadata"].get("namespace", "") for m in rendered if kind_of(m) == kind}
        for where in sorted(places | {place}) if kind.namespaced else [""]:
            for item in _labelled(kube, kind, pool, where, must=bool(places)):
                found[kind, item["metadata"]["name"], where] = None
    return list(found)


def _labelled(kube: Kube, kind: Kind, pool: PoolConfig, place: str, *, must: bool) -> list[Object]:
    try:
        items, _ = kube.list(
            kind, labels=f"{templates.POOL_LABEL}={settings_of(pool).name}", namespace=place
        )
    except KubeError as error:
        if error.status == _NOT_FOUND or (error.status == _FORBIDDEN and not must):
            return []
        raise
    if kind.namespaced:
        return items
    # Pools of one name in other namespaces have such objects too.
    wide = access.wide_name(pool, namespace_of(pool, kube.namespace))
    return [item for item in items if item["metadata"]["name"] == wide]


def _delete(kube: Kube, rows: Iterable[tuple[Kind, str, str]], say: Say) -> None:
    for kind, name, where in rows:
        if kube.delete(kind, name, where):
            say(f"{kind.kind} {name} deleted")


def _hasten(kube: Kube, name: str, place: str) -> None:
    """Nobody waits for the drain of a pool that is taken away; where it may be cut short."""
    try:
        for pod in standing.pods_of(kube, name, place):
            kube.delete(POD, pod.name, place, grace_s=DOWN_GRACE_S)
    except KubeError as error:
        if error.status != _FORBIDDEN:
            raise


def _wait_until_gone(
    kube: Kube,
    rows: Iterable[tuple[Kind, str, str]],
    name: str,
    place: str,
    deadline: float,
    say: Say,
) -> None:
    told = ""
    while True:
        left = [f"{k.kind} {n}" for k, n, where in rows if kube.get(k, n, where) is not None]
        pods = standing.pods_of(kube, name, place)
        if not left and not pods:
            return
        text = ", ".join([*left, *(f"pod {pod.name}" for pod in pods)])
        if text != told:
            say(f"waiting for {text}")
            told = text
        if time.monotonic() >= deadline:
            raise PoolUnavailable(f"still there: {text}; the rest of the pool was left, try again")
        time.sleep(LOOK_S)
