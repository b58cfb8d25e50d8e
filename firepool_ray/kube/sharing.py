"""How the pods of a profile get their GPUs: whole ones, or shared in one of five ways.

Each way changes a pod template in its own place, and tells Ray how many GPUs to count, since Ray
cannot see a share: a pod with a part of a GPU counts one, and the pool does the accounting.

* ``dra:CLAIM``: pods of different images refer to one ResourceClaim, which is one device
* ``kai-fraction:F``, ``kai-memory:MIB``: annotations that KAI's scheduler packs by
* ``time-slicing:N``: one of the N replicas under which NVIDIA's device plugin offers a GPU
* ``mig:PROFILE``: slices that are devices of their own
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from firepool_ray.config import PoolConfig, ProfileConfig
from firepool_ray.config.kubernetes import DEVICE_LOCKS, KubernetesConfig
from firepool_ray.config.pods import pod_gpus
from firepool_ray.kube.api import PERSISTENT_VOLUME_CLAIM, RESOURCE_CLAIM, Object
from firepool_ray.kube.security import pod_security

#: What a container calls the claim it uses.
CLAIM_ALIAS = "gpu"
#: Holds one empty file; storage of clouds comes in no smaller pieces.
LOCK_SIZE = "1Gi"
#: Any group will do, as long as all pods of the claim have it.
LOCK_GROUP = 1000


@dataclass(frozen=True)
class Share:
    """What one pod asks for, and what Ray is told about it."""

    ray_gpus: int = 0
    limits: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    claim: str = ""  #: as the pool file names it


def share_of(profile: ProfileConfig) -> Share:
    """Of one pod of the profile. The pool file was checked, so shares fit."""
    gpus, pod, shares = pod_gpus(profile), profile.pod, profile.pod.shares
    if not gpus:
        return Share()
    match shares.kind:
        case "dra":
            return Share(gpus, claim=shares.value)
        case "kai-fraction":
            return Share(gpus, annotations={"gpu-fraction": shares.value})
        case "kai-memory":
            return Share(gpus, annotations={"gpu-memory": shares.value})
        case "time-slicing":  # several replicas would not be a larger share
            return Share(gpus, limits={pod.gpu_resource: "1"})
        case "mig":
            return Share(gpus, limits={f"nvidia.com/mig-{shares.value}": str(gpus)})
    return Share(gpus, limits={pod.gpu_resource: str(gpus)})


def claim_object_name(pool_name: str, claim: str) -> str:
    return f"{pool_name}-{claim}"


def add_claim(spec: Object, container: Object, pool_name: str, claim: str) -> None:
    """Let the pod hold the claim, and its container use it."""
    spec["resourceClaims"] = [
        {"name": CLAIM_ALIAS, "resourceClaimName": claim_object_name(pool_name, claim)}
    ]
    container["resources"]["claims"] = [{"name": CLAIM_ALIAS}]


def lock_name(pool_name: str, claim: str) -> str:
    return f"{claim_object_name(pool_name, claim)}-lock"


def add_lock(spec: Object, container: Object, settings: KubernetesConfig, claim: str) -> None:
    """Let the pod mount the folder in which all pods of the claim lock its device."""
    kind, _, folder = settings.device_locks.partition(":")
    if kind == "host":
        source: Object = {"hostPath": {"path": folder, "type": "Directory"}}
    else:
        name = lock_name(settings.name, claim)
        source = {"persistentVolumeClaim": {"claimName": name}}
        # Without it the new volume is root's alone.
        spec["securityContext"] = {
            **pod_security(settings.run_as_user),
            "fsGroup": LOCK_GROUP,
            "fsGroupChangePolicy": "OnRootMismatch",
        }
    spec.setdefault("volumes", []).append({"name": "device-lock", **source})
    mount = {"name": "device-lock", "mountPath": DEVICE_LOCKS}
    container.setdefault("volumeMounts", []).append(mount)


def lock_volumes(pool: PoolConfig) -> Iterable[Object]:
    """The volume of each claim's lock. ``pool.kubernetes`` is set."""
    settings = pool.kubernetes
    assert settings is not None
    if settings.device_locks != "claim":
        return
    for claim in dict.fromkeys(filter(None, (share_of(p).claim for p in pool.profiles.values()))):
        yield {
            "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
            "kind": PERSISTENT_VOLUME_CLAIM.kind,
            "metadata": {"name": lock_name(settings.name, claim)},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": LOCK_SIZE}},
            },
        }


def claims_of(pool: PoolConfig) -> Iterable[Object]:
    """One standalone claim for each name: one made from a template would end with its pod.

    ``pool.kubernetes`` is set.
    """
    assert pool.kubernetes is not None
    counts: dict[str, int] = {}
    for profile in pool.profiles.values():
        if claim := share_of(profile).claim:
            counts.setdefault(claim, pod_gpus(profile))
    for claim, count in counts.items():
        yield {
            "apiVersion": RESOURCE_CLAIM.api_version,
            "kind": RESOURCE_CLAIM.kind,
            "metadata": {"name": claim_object_name(pool.kubernetes.name, claim)},
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": CLAIM_ALIAS,
                            "exactly": {
                                "deviceClassName": pool.kubernetes.device_class,
                                "allocationMode": "ExactCount",
                                "count": count,
                            },
                        }
                    ]
                }
            },
        }
