"""What pods follow from a profile's settings, and what several settings together get wrong.

``PoolConfig`` calls ``check_pods``; ``firepool_ray.kube`` asks the rest.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from firepool_ray.config.quantities import number

if TYPE_CHECKING:
    from firepool_ray.config import PoolConfig, ProfileConfig

#: A Kueue workload has at most 8 sets of pods, and the head is one of them.
KUEUE_GROUPS = 7
SYSTEM_GROUP = "system"
DRIVERS_GROUP = "drivers"
#: What a pod gets for each lane that reserves no memory, and what it gets for Ray itself.
LANE_MEMORY_BYTES = 4 << 30
RAY_MEMORY_BYTES = 2 << 30

#: What Kubernetes and Ray take as the value of a label.
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def group_name(profile_name: str) -> str:
    """The worker group of a profile: pods are named after it, so small letters only."""
    return re.sub(r"[^a-z0-9]+", "-", profile_name.lower()).strip("-")


def groups_of(pool: PoolConfig) -> list[str]:
    """All worker groups of the pool's RayCluster, in its order."""
    kubernetes = pool.kubernetes
    drivers = [DRIVERS_GROUP] if kubernetes is not None and kubernetes.drivers.max_pods else []
    return [SYSTEM_GROUP, *drivers, *map(group_name, pool.profiles)]


def min_pods(profile: ProfileConfig) -> int:
    pod = profile.pod
    return pod.min_pods if pod.min_pods is not None else math.ceil(profile.min_lanes / pod.lanes)


def max_pods(profile: ProfileConfig) -> int:
    """``max_lanes`` is set (``check_pods``)."""
    if profile.pod.max_pods is not None:
        return profile.pod.max_pods
    assert profile.max_lanes is not None
    return max(math.ceil(profile.max_lanes / profile.pod.lanes), min_pods(profile))


def pod_gpus(profile: ProfileConfig) -> int:
    """Whole GPUs Ray counts in one pod of the profile; a share of a GPU counts as one."""
    return math.ceil(profile.pod.lanes * profile.gpus - 1e-9)


def pod_cpus(profile: ProfileConfig) -> int:
    """Ray counts whole CPUs; at least one, for Ray itself."""
    return math.ceil(max(1.0, profile.pod.cpus or profile.pod.lanes * profile.cpus) - 1e-9)


def check_pods(pool: PoolConfig) -> None:
    """What several settings together get wrong. Raises ``ValueError`` with the path of the key."""
    kubernetes = pool.kubernetes
    if kubernetes is None:
        following = [name for name, queue in pool.queues.items() if queue.cluster_queue]
        if following:
            raise ValueError(
                f"queues.{following[0]}.cluster_queue: only a pool on Kubernetes can follow one: "
                "add kubernetes: {}"
            )
        return
    groups = groups_of(pool)
    if kubernetes.admitter[0] == "kueue" and len(groups) > KUEUE_GROUPS:
        raise ValueError(
            f"kubernetes.queue: Kueue admits at most {KUEUE_GROUPS} groups of pods, these are "
            f"{len(groups)} ({', '.join(groups)}): leave out profiles, or set drivers.max_pods: 0"
        )
    twice = sorted({name for name in groups if groups.count(name) > 1})
    if twice:
        raise ValueError(f"profiles: several groups of pods would be called {', '.join(twice)}")
    claims: dict[str, tuple[str, float]] = {}
    for name, profile in pool.profiles.items():
        try:
            _check_labels(name, profile)
            _check_profile(profile)
        except ValueError as error:
            raise ValueError(f"profiles.{name}.{error}") from None
        shares = profile.pod.shares
        if shares.kind.startswith("kai-") and kubernetes.admitter[0] != "kai":
            raise ValueError(
                f"profiles.{name}.pod.sharing: only KAI's scheduler knows {profile.pod.sharing}: "
                "set kubernetes.queue to kai:QUEUE"
            )
        if shares.kind == "dra":
            first, gpus = claims.setdefault(shares.value, (name, profile.gpus))
            if gpus != profile.gpus:
                raise ValueError(
                    f"profiles.{name}.gpus: claim {shares.value!r} is shared with {first!r}, which "
                    f"has {gpus:g} GPUs: give both the same"
                )


def _check_labels(name: str, profile: ProfileConfig) -> None:
    if not _LABEL.fullmatch(name):
        raise ValueError(f"name: {name!r} becomes a label, so it must end with a letter or digit")
    for key, value in profile.labels.items():
        if not _LABEL.fullmatch(value):
            raise ValueError(
                f"labels.{key}: {value!r} is no value that a pod can have; a worker group offers "
                "plain labels, not selectors"
            )


def _check_profile(profile: ProfileConfig) -> None:
    pod, shares = profile.pod, profile.pod.shares
    if profile.max_lanes is None:
        raise ValueError("max_lanes: say how many; a worker group on Kubernetes needs a maximum")
    if profile.max_lanes > max_pods(profile) * pod.lanes:
        raise ValueError(
            f"pod.max_pods: {pod.max_pods} pods of {pod.lanes} lanes are fewer than max_lanes "
            f"{profile.max_lanes}"
        )
    if pod.cpus is not None and pod.cpus < pod.lanes * profile.cpus:
        raise ValueError(f"pod.cpus: {pod.lanes} lanes need {pod.lanes * profile.cpus:g} CPUs")
    lanes_bytes = pod.lanes * (profile.memory_bytes or 0)
    if pod.memory is not None and number(pod.memory) <= lanes_bytes:
        raise ValueError(
            f"pod.memory: {pod.lanes} lanes reserve {lanes_bytes / (1 << 30):g}Gi and Ray needs "
            f"some: {pod.memory} is too little"
        )
    if not profile.gpus:
        if shares.kind:
            raise ValueError(f"pod.sharing: {pod.sharing} needs gpus above 0")
        return
    gpus = pod.lanes * profile.gpus
    if shares.is_partial:
        _check_share(profile, gpus)
    elif abs(gpus - round(gpus)) > 1e-6:
        raise ValueError(
            f"pod.lanes: {pod.lanes} lanes of {profile.gpus:g} GPUs leave a part of a GPU unused: "
            "choose lanes that fill whole GPUs, or set pod.sharing"
        )
    if shares.kind == "dra" and profile.max_lanes != 1:
        raise ValueError(
            f"max_lanes: claim {shares.value!r} is one device, so max_lanes is 1: a profile and a "
            "claim for each device"
        )


def _check_share(profile: ProfileConfig, gpus: float) -> None:
    pod, shares = profile.pod, profile.pod.shares
    if gpus > min(1.0, shares.share) + 1e-6:
        raise ValueError(
            f"pod.sharing: {pod.lanes} lanes of {profile.gpus:g} GPUs are more than "
            f"{pod.sharing} gives: {min(1.0, shares.share):.3g} of a GPU"
        )
    # Ray counts a share as a whole GPU: its CPUs alone keep further lanes out of the pod.
    if profile.cpus < 1 or profile.cpus != int(profile.cpus) or pod.cpus is not None:
        raise ValueError(
            "cpus: with a part of a GPU per pod, a lane takes whole CPUs and pod.cpus stays unset, "
            "so that no further lane fits into the pod"
        )
