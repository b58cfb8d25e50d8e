"""What stands around the RayCluster: pool file, Redis, network policy, budget, monitors."""

from __future__ import annotations

from collections.abc import Iterable

import yaml

from firepool_ray.config import PoolConfig
from firepool_ray.config.kubernetes import KubernetesConfig
from firepool_ray.kube import templates
from firepool_ray.kube.api import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    POD_MONITOR,
    SERVICE,
    Kind,
    Object,
)
from firepool_ray.kube.nodes import CLUSTER_LABEL, TYPE_LABEL
from firepool_ray.kube.security import pod_security

REDIS_PORT = 6379
#: The user "redis" of the official image.
REDIS_USER = 999
REDIS_LABEL = "firepool/redis"


def pool_file(pool: PoolConfig) -> tuple[str, Object]:
    """The settings that the system pod starts the pool with."""
    assert pool.kubernetes is not None
    plain = pool.model_dump(mode="json", exclude_defaults=True)
    # Defaults as the package in the image has them; that there is a RayCluster must stay.
    plain.setdefault("kubernetes", {})
    manifest = _object(CONFIG_MAP, templates.pool_file_name(pool.kubernetes))
    name = templates.POOL_FILE.rpartition("/")[2]
    manifest["data"] = {name: yaml.safe_dump(plain, sort_keys=False)}
    return "The pool file, mounted where the controller runs.", manifest


def redis(settings: KubernetesConfig) -> Iterable[tuple[str, Object]]:
    """Where Ray keeps what must survive the head: a Redis of our own."""
    name = f"{settings.name}-redis"
    labels = {REDIS_LABEL: settings.name}
    command = ["redis-server", "--dir", "/data", "--appendonly", "yes", "--protected-mode", "no"]
    container: Object = {"name": "redis", "image": settings.redis_image}
    if settings.redis_secret:
        key = {"name": settings.redis_secret, "key": "password"}
        container["env"] = [{"name": "REDIS_PASSWORD", "valueFrom": {"secretKeyRef": key}}]
        command += ["--requirepass", "$(REDIS_PASSWORD)"]
    container |= {
        "command": command,
        "ports": [{"name": "redis", "containerPort": REDIS_PORT}],
        "readinessProbe": {"tcpSocket": {"port": REDIS_PORT}, "periodSeconds": 2},
        "resources": {
            "requests": {"cpu": "200m", "memory": "512Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        },
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "securityContext": templates.CONTAINER_SECURITY,
    }
    user = 0 if settings.run_as_user == 0 else REDIS_USER
    spec: Object = {
        "automountServiceAccountToken": False,
        "securityContext": {**pod_security(user), "fsGroup": user},
        "containers": [container],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": each} for each in settings.image_pull_secrets]
    deployment = _object(DEPLOYMENT, name)
    deployment["spec"] = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }
    service = _object(SERVICE, name)
    port = {"name": "redis", "port": REDIS_PORT, "targetPort": REDIS_PORT}
    service["spec"] = {"selector": labels, "ports": [port]}
    yield (
        "Ray's state, so that the loss of the head interrupts nothing. Survives its container, not "
        "its pod.",
        deployment,
    )
    yield "The address of that.", service
    if settings.network_policy:
        policy = _object(NETWORK_POLICY, name)
        policy["spec"] = {
            "podSelector": {"matchLabels": labels},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"podSelector": _redis_callers(settings)}],
                    "ports": [{"port": REDIS_PORT}],
                }
            ],
        }
        yield "Only Ray's head may call Redis, and the job that clears up after it.", policy


def network_policy(settings: KubernetesConfig) -> tuple[str, Object]:
    """Ray runs what it is sent: who may call it may run code."""
    policy = _object(NETWORK_POLICY, settings.name)
    operator = {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}
    callers: list[Object] = [
        # Jobs that submit a RayJob's entrypoint, and people's own jobs, are pods of this namespace.
        {"podSelector": {}},
        {"namespaceSelector": {}, "podSelector": operator},
    ]
    ingress: list[Object] = [
        {"from": [{"podSelector": _of_cluster(settings)}]},
        {"from": callers, "ports": [{"port": 8265}, {"port": 10001}]},
    ]
    if settings.monitors:
        ingress.append({"from": [{"namespaceSelector": {}}], "ports": [{"port": 8080}]})
    policy["spec"] = {
        "podSelector": _of_cluster(settings),
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return (
        "Who may call Ray may run code: its own pods; on the dashboard and client ports also pods "
        "of this namespace and Ray's operator.",
        policy,
    )


def disruption_budget(settings: KubernetesConfig) -> tuple[str, Object]:
    """For a head that nothing survives. Lanes need none: they drain when they are evicted."""
    budget = _object(DISRUPTION_BUDGET, f"{settings.name}-head")
    selector = _of_cluster(settings)
    selector["matchLabels"][TYPE_LABEL] = "head"
    budget["spec"] = {"minAvailable": 1, "selector": selector}
    return (
        "Without fault tolerance the loss of the head ends the pool, so it is not evicted: delete "
        "it by hand to empty its node.",
        budget,
    )


def monitors(settings: KubernetesConfig) -> Iterable[tuple[str, Object]]:
    labels = [
        {"sourceLabels": [f"__meta_kubernetes_pod_label_ray_io_{key}"], "targetLabel": target}
        for key, target in (("cluster", "ray_io_cluster"), ("group", "ray_io_group"))
    ]
    for part in ("head", "worker"):
        monitor = _object(POD_MONITOR, f"{settings.name}-{part}")
        selector = _of_cluster(settings)
        selector["matchLabels"][TYPE_LABEL] = part
        endpoint = {"port": "metrics", "interval": "15s", "relabelings": labels}
        monitor["spec"] = {"selector": selector, "podMetricsEndpoints": [endpoint]}
        yield f"Metrics of Ray and of the pool, {part} pods.", monitor


def _of_cluster(settings: KubernetesConfig) -> Object:
    return {"matchLabels": {CLUSTER_LABEL: settings.name}}


def _redis_callers(settings: KubernetesConfig) -> Object:
    types = {"key": TYPE_LABEL, "operator": "In", "values": ["head", "redis-cleanup"]}
    return {**_of_cluster(settings), "matchExpressions": [types]}


def _object(kind: Kind, name: str) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
