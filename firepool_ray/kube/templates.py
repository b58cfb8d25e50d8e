"""Pod templates of the head, the system pod, drivers and lanes.

What they have in common: no privileges, a drain that Kubernetes waits for, an explicit
``RAY_AUTH_MODE`` (a token file left in a home folder would turn authentication on), and no token
for the Kubernetes API wherever code of callers may run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from firepool_ray.config import ProfileConfig
from firepool_ray.config.kubernetes import KubernetesConfig, SizeConfig, Toleration, Volume
from firepool_ray.config.pods import LANE_MEMORY_BYTES, RAY_MEMORY_BYTES, pod_cpus
from firepool_ray.kube import sharing
from firepool_ray.kube.admission import admission_of
from firepool_ray.kube.api import Object
from firepool_ray.kube.security import pod_security

POOL_LABEL = "firepool/pool"
#: A pod is given up this much later than Ray's own drain ends; equal times end in SIGKILL.
GRACE_BEYOND_DRAIN_S = 15
POOL_FILE = "/etc/firepool/pool.yaml"
#: Runs beside Ray in its container, not in one of its own: a driver must see the processes, memory
#: and files of its Ray node. It is started again should it end; Ray's operator puts ``ray start``
#: behind it.
KEEP = f"{{ while :; do firepool keep --file {POOL_FILE}; sleep 2; done & }}"

#: A lost node is known after 5 s instead of half a minute; the rest of Ray's defaults stays.
HEAD_ENV = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


def head(settings: KubernetesConfig) -> Object:
    size = _size(settings.head)
    container = _container(settings, "ray-head", settings.image, size, HEAD_ENV)
    container["ports"] = [
        {"name": "gcs-server", "containerPort": 6379},
        {"name": "dashboard", "containerPort": 8265},
        {"name": "client", "containerPort": 10001},
    ]
    spec: Object = {"automountServiceAccountToken": False, "volumes": [_api_volume()]}
    return _template(settings, container, spec)


#: Of the autoscaler, which the operator puts beside Ray in the head pod: it scales pods with the
#: account that the operator makes for it. Ray's own container there gets no token.
AUTOSCALER_MOUNTS: list[Object] = [
    {
        "name": "kubernetes-api",
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        "readOnly": True,
    }
]


def _api_volume() -> Object:
    """What Kubernetes mounts by itself into every container of a pod, for one of them only."""
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    certificate = {"key": "ca.crt", "path": "ca.crt"}
    return {
        "name": AUTOSCALER_MOUNTS[0]["name"],
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [certificate]}},
                {"downwardAPI": {"items": [namespace]}},
            ]
        },
    }


def system(settings: KubernetesConfig, account: str) -> Object:
    size = _size(settings.system)
    container = _container(settings, "ray-worker", settings.image, size, {})
    container["args"] = [KEEP]
    folder = POOL_FILE.rpartition("/")[0]
    container["volumeMounts"] = [{"name": "pool", "mountPath": folder, "readOnly": True}]
    volumes = [{"name": "pool", "configMap": {"name": pool_file_name(settings)}}]
    spec = {"serviceAccountName": account, "automountServiceAccountToken": True, "volumes": volumes}
    return _template(settings, container, spec)


def driver(settings: KubernetesConfig) -> Object:
    size = _size(settings.drivers)
    container = _container(settings, "ray-worker", settings.image, size, {})
    return _template(settings, container, {"automountServiceAccountToken": False})


def lane(settings: KubernetesConfig, profile: ProfileConfig) -> Object:
    pod, share = profile.pod, sharing.share_of(profile)
    size = {"cpu": str(pod_cpus(profile)), "memory": memory_of(profile), **share.limits}
    container = _container(settings, "ray-worker", pod.image or settings.image, size, pod.env)
    if pod.env_secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in pod.env_secrets]
    spec: Object = {"automountServiceAccountToken": False}
    if pod.volumes:
        container["volumeMounts"], spec["volumes"] = _volumes(pod.volumes)
    if share.claim:
        sharing.add_claim(spec, container, settings.name, share.claim)
        sharing.add_lock(spec, container, settings, share.claim)
    return _template(
        settings,
        container,
        spec,
        annotations={**pod.annotations, **share.annotations},
        node_selector=pod.node_selector,
        tolerations=pod.tolerations,
    )


def submitter(settings: KubernetesConfig) -> Object:
    """Of the pod that hands a RayJob's entrypoint to the RayCluster, and shows its output."""
    size = {"cpu": "500m", "memory": "512Mi"}
    container = _container(settings, "submitter", settings.image, size, {})
    template = _template(settings, container, {"automountServiceAccountToken": False})
    template["spec"]["restartPolicy"] = "Never"
    del template["spec"]["terminationGracePeriodSeconds"]
    return template


def pool_file_name(settings: KubernetesConfig) -> str:
    return f"{settings.name}-pool"


def memory_of(profile: ProfileConfig) -> str:
    """Of one pod: its lanes', and what Ray itself needs."""
    if profile.pod.memory is not None:
        return profile.pod.memory
    lanes = profile.pod.lanes * (profile.memory_bytes or LANE_MEMORY_BYTES)
    mebibytes = math.ceil((lanes + RAY_MEMORY_BYTES) / (1 << 20))
    return f"{mebibytes}Mi" if mebibytes % 1024 else f"{mebibytes // 1024}Gi"


def ray_env(settings: KubernetesConfig) -> dict[str, str]:
    """Of every process of Ray, the autoscaler's too."""
    return {"RAY_AUTH_MODE": settings.auth}


def env_list(env: Mapping[str, str]) -> list[Object]:
    return [{"name": name, "value": value} for name, value in env.items()]


def _size(size: SizeConfig) -> dict[str, str]:
    return {"cpu": f"{size.cpus:g}", "memory": size.memory}


def _container(
    settings: KubernetesConfig,
    name: str,
    image: str,
    size: Mapping[str, str],
    env: Mapping[str, str],
) -> Object:
    drain = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": f"{settings.drain_s:g}"}
    return {
        "name": name,
        "image": image,
        "env": env_list({**ray_env(settings), **drain, **settings.env, **env}),
        "resources": {"requests": dict(size), "limits": dict(size)},
        "securityContext": CONTAINER_SECURITY,
    }


def _template(
    settings: KubernetesConfig,
    container: Object,
    spec: Object,
    *,
    annotations: Mapping[str, str] | None = None,
    node_selector: Mapping[str, str] | None = None,
    tolerations: Iterable[Toleration] = (),
) -> Object:
    admission = admission_of(settings)
    metadata: Object = {"labels": {POOL_LABEL: settings.name, **admission.pod_labels}}
    told = {**settings.annotations, **admission.pod_annotations, **(annotations or {})}
    if told:
        metadata["annotations"] = told
    whole: Object = {
        "securityContext": pod_security(settings.run_as_user),
        "terminationGracePeriodSeconds": math.ceil(settings.drain_s) + GRACE_BEYOND_DRAIN_S,
        **spec,
    }
    if admission.scheduler:
        whole["schedulerName"] = admission.scheduler
    if selector := {**settings.node_selector, **(node_selector or {})}:
        whole["nodeSelector"] = selector
    if tolerated := [*settings.tolerations, *tolerations]:
        whole["tolerations"] = [
            {key: value for key, value in entry.model_dump().items() if value != ""}
            for entry in tolerated
        ]
    if settings.image_pull_secrets:
        whole["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    whole["containers"] = [container]
    return {"metadata": metadata, "spec": whole}


def _volumes(volumes: Iterable[Volume]) -> tuple[list[Object], list[Object]]:
    mounts, sources = [], []
    for number, volume in enumerate(volumes):
        name = f"volume-{number}"
        mounts.append({"name": name, "mountPath": volume.mount, "readOnly": volume.read_only})
        if volume.claim:
            source: Object = {"persistentVolumeClaim": {"claimName": volume.claim}}
        elif volume.secret:
            source = {"secret": {"secretName": volume.secret}}
        else:
            source = {"configMap": {"name": volume.config_map}}
        sources.append({"name": name, **source})
    return mounts, sources
