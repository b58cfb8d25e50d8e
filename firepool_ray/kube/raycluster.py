"""The RayCluster of a pool, and the RayJob of a trainer that uses it.

One worker group for each profile, found by its label; Ray's autoscaler alone scales their pods.
The head carries no lanes and no user code. A group of one pod, ``system``, holds the controller;
another, ``drivers``, holds the drivers of RayJobs, which would end with the head.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import yaml

from firepool_ray.config import PoolConfig, ProfileConfig
from firepool_ray.config.kubernetes import KubernetesConfig
from firepool_ray.config.pods import (
    DRIVERS_GROUP,
    SYSTEM_GROUP,
    group_name,
    max_pods,
    min_pods,
    pod_cpus,
)
from firepool_ray.kube import sharing, templates
from firepool_ray.kube.admission import admission_of
from firepool_ray.kube.api import RAY_CLUSTER, RAY_JOB, Object
from firepool_ray.kube.nodes import CLUSTER_LABEL, PROFILE_LABEL

ROLE_LABEL = "firepool/role"
#: One of it in each pod for drivers; a RayJob's entrypoint asks for one.
DRIVER_RESOURCE = "firepool_driver"
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)")


def raycluster(pool: PoolConfig, account: str) -> Object:
    """``account``: the service account of the system pod."""
    settings = _settings(pool)
    admission = admission_of(settings)
    metadata: Object = {"name": settings.name}
    if admission.cluster_labels:
        metadata["labels"] = dict(admission.cluster_labels)
    if admission.cluster_annotations:
        metadata["annotations"] = dict(admission.cluster_annotations)
    spec: Object = {"rayVersion": ray_version(settings)}
    if admission.suspended:
        spec["suspend"] = True
    if settings.auth == "token":
        spec["authOptions"] = {"mode": "token"}
    if settings.redis:
        spec["gcsFaultToleranceOptions"] = _fault_tolerance(settings)
    spec["enableInTreeAutoscaling"] = True
    spec["autoscalerOptions"] = {
        "version": "v2",
        "idleTimeoutSeconds": math.ceil(settings.idle_timeout_s),
        "upscalingMode": "Default",
        "env": templates.env_list(templates.ray_env(settings)),
        "volumeMounts": templates.AUTOSCALER_MOUNTS,
        "securityContext": templates.CONTAINER_SECURITY,
    }
    spec["headGroupSpec"] = {
        "rayStartParams": _params(settings, cpus=0, gpus=0, dashboard="0.0.0.0"),
        "template": templates.head(settings),
    }
    spec["workerGroupSpecs"] = [_system_group(settings, account), *_driver_groups(settings)]
    spec["workerGroupSpecs"] += [
        _lane_group(settings, name, profile) for name, profile in pool.profiles.items()
    ]
    return {
        "apiVersion": RAY_CLUSTER.api_version,
        "kind": RAY_CLUSTER.kind,
        "metadata": metadata,
        "spec": spec,
    }


def rayjob(
    pool: PoolConfig,
    entrypoint: str,
    name: str,
    *,
    working_dir: str = "",
    env: Mapping[str, str] | None = None,
) -> Object:
    """A trainer on the pool's RayCluster, which is there before and after it.

    It has no queue of its own in Kubernetes, since it brings no pods that its queue could hold: it
    names a queue of the pool (``fp.options(queue=...)``). ``suspend`` is not for such jobs.
    """
    settings = _settings(pool)
    spec: Object = {
        "clusterSelector": {CLUSTER_LABEL: settings.name},
        "submissionMode": "K8sJobMode",
        "entrypoint": entrypoint,
        "shutdownAfterJobFinishes": False,
        "backoffLimit": 0,
        "submitterPodTemplate": templates.submitter(settings),
    }
    if settings.drivers.max_pods:
        spec["entrypointResources"] = json.dumps({DRIVER_RESOURCE: 1})
    runtime_env: dict[str, Any] = {}
    if working_dir:
        runtime_env["working_dir"] = working_dir
    if env:
        runtime_env["env_vars"] = dict(env)
    if runtime_env:
        spec["runtimeEnvYAML"] = yaml.safe_dump(runtime_env, sort_keys=False)
    return {
        "apiVersion": RAY_JOB.api_version,
        "kind": RAY_JOB.kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def ray_version(settings: KubernetesConfig) -> str:
    """As the operator is told it: it decides by it which options Ray has."""
    tag = settings.image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    found = _VERSION.match(tag)
    if settings.ray_version or found is None:
        return settings.ray_version or _installed_ray()
    return found[1]


def redis_address(settings: KubernetesConfig) -> str:
    return f"{settings.name}-redis:6379" if settings.redis == "managed" else settings.redis


def _installed_ray() -> str:
    try:
        return version("ray")
    except PackageNotFoundError:
        return ""


def _settings(pool: PoolConfig) -> KubernetesConfig:
    assert pool.kubernetes is not None, "manifests need the key 'kubernetes'"
    return pool.kubernetes


def _params(
    settings: KubernetesConfig,
    *,
    cpus: int,
    gpus: int,
    resources: Mapping[str, float] | None = None,
    dashboard: str = "",
) -> dict[str, str]:
    # All of it is said, since Ray's operator and autoscaler would each guess from the limits.
    params = {"num-cpus": str(cpus), "num-gpus": str(gpus)}
    if dashboard:
        params["dashboard-host"] = dashboard
    if resources:
        params["resources"] = f"'{json.dumps(dict(resources))}'"
    return {**params, **settings.ray_start_params}


def _group(
    name: str,
    labels: Mapping[str, str],
    pods: tuple[int, int],
    params: Mapping[str, str],
    template: Object,
    idle_timeout_s: float | None = None,
) -> Object:
    """``pods``: (least, most)."""
    group: Object = {
        "groupName": name,
        "labels": dict(labels),
        "replicas": pods[0],
        "minReplicas": pods[0],
        "maxReplicas": pods[1],
    }
    if idle_timeout_s is not None:
        group["idleTimeoutSeconds"] = math.ceil(idle_timeout_s)
    return {**group, "rayStartParams": dict(params), "template": template}


def _system_group(settings: KubernetesConfig, account: str) -> Object:
    # No CPUs: nothing of a caller's is placed beside the controller and its token.
    params = _params(settings, cpus=0, gpus=0)
    template = templates.system(settings, account)
    return _group(SYSTEM_GROUP, {ROLE_LABEL: "system"}, (1, 1), params, template)


def _driver_groups(settings: KubernetesConfig) -> list[Object]:
    most = settings.drivers.max_pods
    if not most:
        return []
    cpus = math.ceil(settings.drivers.cpus)
    params = _params(settings, cpus=cpus, gpus=0, resources={DRIVER_RESOURCE: 1})
    template = templates.driver(settings)
    return [_group(DRIVERS_GROUP, {ROLE_LABEL: "driver"}, (0, most), params, template)]


def _lane_group(settings: KubernetesConfig, name: str, profile: ProfileConfig) -> Object:
    resources = {key: amount * profile.pod.lanes for key, amount in profile.resources.items()}
    params = _params(
        settings,
        cpus=pod_cpus(profile),
        gpus=sharing.share_of(profile).ray_gpus,
        resources=resources,
    )
    return _group(
        group_name(name),
        {PROFILE_LABEL: name, **profile.labels},
        (min_pods(profile), max_pods(profile)),
        params,
        templates.lane(settings, profile),
        profile.pod.idle_timeout_s,
    )


def _fault_tolerance(settings: KubernetesConfig) -> Object:
    options: Object = {"redisAddress": redis_address(settings)}
    if settings.redis_secret:
        key = {"name": settings.redis_secret, "key": "password"}
        options["redisPassword"] = {"valueFrom": {"secretKeyRef": key}}
    return options
