"""What a pool needs of its cluster, checked one by one: behind ``firepool kube doctor``.

Each check says what is so, or what to do. Where the caller may not look, it says that instead of
guessing. Nothing that stays is changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from firepool_ray.config import PoolConfig
from firepool_ray.config.kubernetes import parse_queue
from firepool_ray.errors import KubeError
from firepool_ray.kube import capacity, deploy, standing
from firepool_ray.kube.admission import QUEUE_KINDS
from firepool_ray.kube.api import (
    DEVICE_CLASS,
    EVENT,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RAY_CLUSTER,
    SECRET,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
    Kind,
    Kube,
    Object,
    kind_of,
)
from firepool_ray.kube.manifests import Document, documents, namespace_of, settings_of
from firepool_ray.kube.nodes import cluster_trouble, groups_of
from firepool_ray.kube.sharing import claims_of, lock_volumes

#: So long may Ray's operator take to notice a RayCluster.
OPERATOR_S = 10.0
_FORBIDDEN = 403


class Check(NamedTuple):
    verdict: Literal["ok", "problem", "note"]  #: a note: cannot be known, or worth knowing
    what: str
    detail: str  #: with a problem, what to do about it


def ok(what: str, detail: str) -> Check:
    return Check("ok", what, detail)


def problem(what: str, detail: str) -> Check:
    return Check("problem", what, detail)


def note(what: str, detail: str) -> Check:
    return Check("note", what, detail)


def examine(kube: Kube, pool: PoolConfig) -> list[Check]:
    """All checks, in an order in which a later one needs the earlier. Raises ``ConfigError``."""
    try:
        version = kube.version()
    except KubeError as error:
        return [problem("API server", f"{error}: check KUBECONFIG and the network")]
    found = [ok("API server", f"Kubernetes {version}")]
    place = namespace_of(pool, kube.namespace)
    manifests = documents(pool, kube.namespace)
    for check in (_namespace, _kinds, _rights, _queue, _classes, _locks, _named, _accepted):
        found += _guarded(check, kube, pool, place, manifests)
    if not any(row.verdict == "problem" and row.what == RAY_CLUSTER.kind for row in found):
        found += _guarded(_operator, kube, pool, place, manifests)
        found += _guarded(_agreement, kube, pool, place, manifests)
        found += _guarded(_admission, kube, pool, place, manifests)
    found += _guarded(_capacity, kube, pool, place, manifests)
    return found


_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"

Part = Callable[[Kube, PoolConfig, str, list[Document]], Iterable[Check]]


def _guarded(
    part: Part, kube: Kube, pool: PoolConfig, place: str, manifests: list[Document]
) -> list[Check]:
    """An answer that is no answer is one more line, not the end of the examination."""
    found: list[Check] = []
    try:
        found.extend(part(kube, pool, place, manifests))
    except KubeError as error:
        what = part.__name__.strip("_")
        kind = note if error.status == _FORBIDDEN else problem
        found.append(kind(what, f"cannot be checked: {error}"))
    return found


def _namespace(kube: Kube, pool: PoolConfig, place: str, _: list[Document]) -> Iterator[Check]:
    if kube.get(NAMESPACE, place) is None:
        yield problem("namespace", f"there is no {place}: `kubectl create namespace {place}`")
    else:
        yield ok("namespace", place)


def _kinds(kube: Kube, pool: PoolConfig, place: str, manifests: list[Document]) -> Iterator[Check]:
    """Kinds that are not part of Kubernetes itself, or not of every version."""
    kinds = dict.fromkeys(kind_of(document.manifest) for document in manifests)
    for kind in kinds:
        if kind.group in _BUILT_IN:
            continue
        if kube.serves(kind):
            yield ok(kind.kind, f"{kind.api_version} is served")
        else:
            yield problem(
                kind.kind, f"{kind.api_version} is not served: {deploy.missing_kind(kind)}"
            )


#: Groups of which every cluster serves what is applied here.
_BUILT_IN = {"", "apps", "policy", "rbac.authorization.k8s.io", "networking.k8s.io"}


def _rights(kube: Kube, pool: PoolConfig, place: str, manifests: list[Document]) -> Iterator[Check]:
    """Of whoever asks: what ``up``, ``down`` and ``status`` need."""
    wanted: dict[tuple[str, Kind, str], None] = {}
    for document in manifests:
        kind, where = kind_of(document.manifest), document.manifest["metadata"].get("namespace", "")
        for verb in ("get", "list", "create", "patch", "delete"):
            wanted[verb, kind, where] = None
    for kind in (POD, EVENT):
        wanted["list", kind, place] = None
    refused = [
        f"{verb} {kind.plural}" + (f" in {where}" if where else " (cluster-wide)")
        for verb, kind, where in wanted
        if not kube.may(verb, kind, where)
    ]
    if refused:
        yield problem(
            "your rights",
            f"you may not {', '.join(refused)}: ask for it, or let somebody who may apply "
            "`firepool kube render`",
        )
    else:
        yield ok("your rights", f"enough to apply, watch and delete all of it in {place}")


def _queue(kube: Kube, pool: PoolConfig, place: str, manifests: list[Document]) -> Iterator[Check]:
    """Those that admit the pods, and those that the pool's queues follow."""
    settings = settings_of(pool)
    wanted = [("kubernetes.queue", settings.admitter, "admits")]
    wanted += [
        (f"queues.{name}.cluster_queue", parse_queue(queue.cluster_queue), "signals")
        for name, queue in pool.queues.items()
    ]
    for key, (kind, name), role in wanted:
        kinds = QUEUE_KINDS.get((kind, role), ())
        if not kinds:
            continue
        served = next((each for each in kinds if kube.serves(each)), None)
        where, _, bare = name.rpartition("/")
        if served is None:
            yield problem(key, f"{kinds[0].api_version} {kinds[0].kind} is not served: install it")
        elif kube.get(served, bare, where or place) is None:
            yield problem(key, f"there is no {served.kind} {name!r}: make it, or name another")
        else:
            yield ok(key, f"{served.kind} {name} is there")


def _classes(kube: Kube, pool: PoolConfig, place: str, _: list[Document]) -> Iterator[Check]:
    if not list(claims_of(pool)):
        return
    name = settings_of(pool).device_class
    if kube.get(DEVICE_CLASS, name) is None:
        yield problem(
            "device class",
            f"there is no DeviceClass {name!r}: install the GPU's DRA driver, or set "
            "kubernetes.device_class",
        )
    else:
        yield ok("device class", f"{name} is there")


def _locks(kube: Kube, pool: PoolConfig, place: str, _: list[Document]) -> Iterator[Check]:
    """Whether the volumes of device locks can come."""
    for volume in lock_volumes(pool):
        name = volume["metadata"]["name"]
        bound = (
            (kube.get(PERSISTENT_VOLUME_CLAIM, name, place) or {}).get("status", {}).get("phase")
        )
        classes, _version = kube.list(STORAGE_CLASS)
        default = any(
            (item["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
            for item in classes
        )
        if bound == "Bound" or default:
            yield ok(
                "device lock", f"PersistentVolumeClaim {name} {'is' if bound else 'can be'} bound"
            )
        else:
            yield problem(
                "device lock",
                f"nothing makes a volume for PersistentVolumeClaim {name}: there is no default "
                "StorageClass. Make one, or a volume, or set kubernetes.device_locks: host:/FOLDER",
            )


def _named(kube: Kube, pool: PoolConfig, place: str, _: list[Document]) -> Iterator[Check]:
    """What the pool file names but does not make."""
    settings = settings_of(pool)
    secrets = {settings.redis_secret, *settings.image_pull_secrets}
    for profile in pool.profiles.values():
        secrets |= {*profile.pod.env_secrets, *(v.secret for v in profile.pod.volumes)}
    named = [(SECRET, name) for name in sorted(secrets) if name]
    if settings.service_account:
        named.append((SERVICE_ACCOUNT, settings.service_account))
    for kind, name in named:
        if kube.get(kind, name, place) is None:
            yield problem(kind.kind, f"there is no {name!r} in {place}: make it before `up`")
        else:
            yield ok(kind.kind, f"{name} is there")


def _accepted(
    kube: Kube, pool: PoolConfig, place: str, manifests: list[Document]
) -> Iterator[Check]:
    """Each manifest as a dry run: the server's own word, with its admission plugins'."""
    refused = []
    for document in manifests:
        manifest = document.manifest
        try:
            kube.apply(manifest, dry_run=True)
        except KubeError as error:
            refused.append(f"{manifest['kind']} {manifest['metadata']['name']}: {error}")
    if refused:
        yield problem("manifests", "; ".join(refused) + ": change the pool file accordingly")
    else:
        yield ok("manifests", f"all {len(manifests)} would be accepted")


def _operator(kube: Kube, pool: PoolConfig, place: str, _: list[Document]) -> Iterator[Check]:
    """Whether somebody acts on RayClusters: ours if there is one, else one made for it."""
    name = settings_of(pool).name
    probe = ""
    if kube.get(RAY_CLUSTER, name, place) is None:
        probe = name = f"{name}-doctor"
        kube.apply(_probe(probe, place))
    try:
        deadline = time.monotonic() + OPERATOR_S
        while not (acts := _is_observed(kube.get(RAY_CLUSTER, name, place))):
            if time.monotonic() >= deadline:
                break
            time.sleep(0.2)
    finally:
        if probe:
            kube.delete(RAY_CLUSTER, probe, place)
    if acts:
        yield ok("Ray's operator", f"acts on RayCluster {name}")
    else:
        yield problem(
            "Ray's operator",
            f"nobody acts on RayCluster {name} in {OPERATOR_S:g} s: see whether the pod "
            "kuberay-operator runs, and whether it watches this namespace",
        )


def _is_observed(cluster: Object | None) -> bool:
    if cluster is None:
        return False
    status, metadata = cluster.get("status", {}), cluster["metadata"]
    return bool(status) and status.get("observedGeneration", 0) >= metadata.get("generation", 0)


def _probe(name: str, place: str) -> Object:
    """Suspended, so that no pod comes of it."""
    container = {"name": "ray-head", "image": "none"}
    return {
        "apiVersion": RAY_CLUSTER.api_version,
        "kind": RAY_CLUSTER.kind,
        "metadata": {"name": name, "namespace": place},
        "spec": {
            "suspend": True,
            "headGroupSpec": {
                "rayStartParams": {},
                "template": {"spec": {"containers": [container]}},
            },
        },
    }


def _agreement(
    kube: Kube, pool: PoolConfig, place: str, manifests: list[Document]
) -> Iterator[Check]:
    """A RayCluster that is there has the groups, labels and bounds of the pool file."""
    wanted = next(d.manifest for d in manifests if d.manifest["kind"] == RAY_CLUSTER.kind)
    cluster = kube.get(RAY_CLUSTER, wanted["metadata"]["name"], place)
    if cluster is None:
        yield note("pool file", "there is no RayCluster yet: `firepool kube up`")
        return
    has = {group.name: group for group in groups_of(cluster)}
    wrong = []
    for group in groups_of(wanted):
        living = has.pop(group.name, None)
        if living is None:
            wrong.append(f"no group {group.name}")
        elif living.profile != group.profile:
            wrong.append(f"group {group.name} is labelled {living.profile!r}")
        elif (living.minimum, living.maximum) != (group.minimum, group.maximum):
            wrong.append(
                f"group {group.name} has {living.minimum} to {living.maximum} pods, "
                f"not {group.minimum} to {group.maximum}"
            )
    wrong += [f"group {name} is not in the pool file" for name in has]
    if wrong:
        yield problem("pool file", "; ".join(wrong) + ": run `firepool kube up`")
    else:
        yield ok("pool file", "the RayCluster has its groups, labels and bounds")


def _admission(
    kube: Kube, pool: PoolConfig, place: str, manifests: list[Document]
) -> Iterator[Check]:
    """A RayCluster that its queue holds back, or took back, in the queue's own words."""
    name = settings_of(pool).name
    cluster = kube.get(RAY_CLUSTER, name, place)
    if cluster is None or settings_of(pool).admitter[0] != "kueue":
        return
    words = standing.admission_words(kube, cluster, place)[-1:]
    if trouble := cluster_trouble(cluster, name):
        told = "; ".join([trouble, *words])
        yield problem(
            "admission",
            f"{told}. It comes back by itself once its queue has room: wait, or raise the queue's "
            "quota; within its nominal quota nobody takes it back",
        )
    else:
        yield ok("admission", words[0] if words else "not suspended")


def _capacity(
    kube: Kube, pool: PoolConfig, place: str, manifests: list[Document]
) -> Iterator[Check]:
    """Whether pods of each group fit any node that is there now."""
    cluster = next(d.manifest for d in manifests if d.manifest["kind"] == RAY_CLUSTER.kind)
    for name, shortage in capacity.shortages(kube, cluster):
        if shortage:
            yield problem(
                name, f"{shortage}; it comes only if nodes are added: change its size or them"
            )
        else:
            yield ok(name, "a node is large enough for its pods")
