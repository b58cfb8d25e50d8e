"""One connection to a Kubernetes API server, in plain dicts as they stand in manifests.

Credentials come from the pod's service account, else from the user's kubeconfig. Everything blocks;
every failure is a ``KubeError`` that says what was asked for and what the server answered.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from firepool_ray.errors import KubeError

Object = dict[str, Any]

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: A list or a change is answered within this, or the server counts as unreachable.
CALL_S = 15.0
#: Who set a field, for server-side apply.
FIELD_MANAGER = "firepool"


class Kind(NamedTuple):
    """A resource as the API's paths name it."""

    api_version: str  #: "v1" or "group/version"
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]


POD = Kind("v1", "Pod", "pods")
EVENT = Kind("v1", "Event", "events")
NODE = Kind("v1", "Node", "nodes", namespaced=False)
NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
SERVICE = Kind("v1", "Service", "services")
SECRET = Kind("v1", "Secret", "secrets")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
RESOURCE_QUOTA = Kind("v1", "ResourceQuota", "resourcequotas")
PERSISTENT_VOLUME_CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
STORAGE_CLASS = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets")
ROLE = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDING = Kind(
    "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False
)
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
RESOURCE_CLAIM = Kind("resource.k8s.io/v1", "ResourceClaim", "resourceclaims")
DEVICE_CLASS = Kind("resource.k8s.io/v1", "DeviceClass", "deviceclasses", namespaced=False)
RAY_CLUSTER = Kind("ray.io/v1", "RayCluster", "rayclusters")
RAY_JOB = Kind("ray.io/v1", "RayJob", "rayjobs")
POD_MONITOR = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")

KINDS = {kind.kind: kind for kind in list(globals().values()) if isinstance(kind, Kind)}


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """Raises ``KubeError`` for a kind that this package does not apply."""
    kind = KINDS.get(manifest.get("kind", ""))
    if kind is None or kind.api_version != manifest.get("apiVersion"):
        what = f"{manifest.get('apiVersion')} {manifest.get('kind')}"
        raise KubeError(f"{what} is nothing that firepool applies")
    return kind


class Kube:
    """A connection and the namespace that calls without one mean. Safe to use from threads."""

    def __init__(self, client_: client.ApiClient, namespace: str, agent: str = "cli") -> None:
        #: Sent so far. What a pool costs the API server is counted where it arises.
        self.requests = 0
        self._client = client_
        self._client.user_agent = f"firepool/{version('firepool-ray')} ({agent})"
        self.namespace = namespace

    @classmethod
    def connect(cls, namespace: str = "", agent: str = "cli") -> Kube:
        """From the pod's service account, else the kubeconfig ($KUBECONFIG, ~/.kube/config).

        ``agent`` ends up in the API server's audit log. Raises ``KubeError`` where there is
        neither.
        """
        settings = client.Configuration()
        try:
            if (_ACCOUNT / "token").exists() and "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config(settings)  # type: ignore[no-untyped-call]
                found = (_ACCOUNT / "namespace").read_text().strip()
            else:
                # The client itself looks at $KUBECONFIG only once, when it is imported.
                file = os.environ.get("KUBECONFIG") or None
                config.load_kube_config(file, client_configuration=settings)  # type: ignore[no-untyped-call]
                _, context = config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
                found = context["context"].get("namespace", "default")
        except (ConfigException, OSError) as error:
            raise KubeError(
                f"no Kubernetes cluster is known here ({error}): run this in a pod with a service "
                "account, or set KUBECONFIG"
            ) from None
        if not settings.verify_ssl:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        return cls(client.ApiClient(settings), namespace or found, agent)

    # ------------------------------------------------------------ reading

    def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """None where there is no such object, or no such kind on this cluster."""
        try:
            return self._json("GET", self._path(kind, name, namespace))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def list(
        self, kind: Kind, *, labels: str = "", fields: str = "", namespace: str = ""
    ) -> tuple[list[Object], str]:
        """(objects, resource version to watch from)."""
        query = _query(labelSelector=labels, fieldSelector=fields)
        answer = self._json("GET", self._path(kind, "", namespace) + query)
        items = answer.get("items") or []
        for item in items:  # a list's members come without their kind
            item.setdefault("kind", kind.kind)
            item.setdefault("apiVersion", kind.api_version)
        return items, answer.get("metadata", {}).get("resourceVersion", "")

    def watch(
        self,
        kind: Kind,
        resource_version: str,
        *,
        labels: str = "",
        fields: str = "",
        namespace: str = "",
        timeout_s: float = 300.0,
    ) -> Iterator[tuple[str, Object]]:
        """(type, object) of every change after ``resource_version``, until ``timeout_s``.

        Returns once the server has agreed. Raises ``KubeError``, then and while it is followed
        (status 410: too old, list again).
        """
        query = _query(
            watch="1",
            allowWatchBookmarks="1",
            resourceVersion=resource_version,
            timeoutSeconds=str(int(timeout_s)),
            labelSelector=labels,
            fieldSelector=fields,
        )
        path = self._path(kind, "", namespace) + query
        response = self._send("GET", path, timeout_s=(CALL_S, timeout_s + CALL_S), stream=True)
        return _changes(path, response)

    # ------------------------------------------------------------ writing (with the user's rights)

    def apply(
        self,
        manifest: Object,
        *,
        dry_run: bool = False,
        force: bool = True,
        kind: Kind | None = None,
    ) -> Object:
        """Server-side apply: create it, or change the fields that it states.

        A field that the server does not know is an error, not dropped. ``kind``: of a manifest
        that is none of ``KINDS``.
        """
        kind = kind or kind_of(manifest)
        metadata = manifest["metadata"]
        path = self._path(kind, metadata["name"], metadata.get("namespace", ""))
        query = _query(
            fieldManager=FIELD_MANAGER,
            force="true" if force else "",
            dryRun="All" if dry_run else "",
            fieldValidation="Strict",
        )
        return self._json("PATCH", path + query, manifest, "application/apply-patch+yaml")

    def patch(self, kind: Kind, name: str, change: Object, namespace: str = "") -> Object:
        """A JSON merge patch."""
        path = self._path(kind, name, namespace)
        return self._json("PATCH", path, change, "application/merge-patch+json")

    def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        kind = kind_of(manifest)
        path = self._path(kind, "", manifest["metadata"].get("namespace", ""))
        return self._json("POST", path + _query(dryRun="All" if dry_run else ""), manifest)

    def delete(
        self, kind: Kind, name: str, namespace: str = "", grace_s: int | None = None
    ) -> bool:
        """False where there was nothing to delete. ``grace_s`` None: what the object says."""
        body: Object = {"propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            self._json("DELETE", self._path(kind, name, namespace), body)
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return True

    def through(self, service: str, port: int, method: str, path: str, body: Any = None) -> Object:
        """What an HTTP service of the namespace answers, through the API server's proxy."""
        root = f"/api/v1/namespaces/{quote(self.namespace)}/services/{quote(service)}:{port}/proxy"
        return self._json(method, root + path, body)

    def may(self, verb: str, kind: Kind, namespace: str = "") -> bool:
        """Whether these credentials are allowed to (asks a SelfSubjectAccessReview)."""
        attributes = {"verb": verb, "group": kind.group, "resource": kind.plural}
        if kind.namespaced:
            attributes["namespace"] = namespace or self.namespace
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool(self._json("POST", path, review)["status"]["allowed"])

    def version(self) -> str:
        return str(self._json("GET", "/version")["gitVersion"])

    def serves(self, kind: Kind) -> bool:
        """Whether the cluster knows the kind at this version (its CRD is installed)."""
        root = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
        try:
            answer = self._json("GET", root)
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return any(row["name"] == kind.plural for row in answer["resources"])

    # ------------------------------------------------------------ how it is sent

    def _path(self, kind: Kind, name: str = "", namespace: str = "") -> str:
        path = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        if kind.namespaced and namespace != "*":
            path += f"/namespaces/{quote(namespace or self.namespace)}"
        path += f"/{kind.plural}"
        return f"{path}/{quote(name)}" if name else path

    def _json(
        self, method: str, path: str, body: Any = None, content: str = "application/json"
    ) -> Object:
        response = self._send(method, path, body, content, timeout_s=(CALL_S, CALL_S))
        answer: Object = json.loads(response.data or b"{}")
        return answer

    def _send(
        self,
        method: str,
        path: str,
        body: Any = None,
        content: str = "application/json",
        *,
        timeout_s: tuple[float, float],  # to connect; between two pieces of the answer
        stream: bool = False,
    ) -> Any:
        headers = {"Accept": "application/json", "User-Agent": self._client.user_agent}
        if body is not None:
            headers["Content-Type"] = content
        for scheme in self._client.configuration.auth_settings().values():  # refreshes tokens
            headers[scheme["key"]] = scheme["value"]
        self.requests += 1
        pool = self._client.rest_client.pool_manager
        what = f"{method} {path.partition('?')[0]}"
        try:
            response = pool.request(
                method,
                self._client.configuration.host + path,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=timeout_s[0], read=timeout_s[1]),
                preload_content=not stream,
                retries=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise KubeError(f"{what}: the API server does not answer: {error}") from None
        if response.status >= 400:
            data = response.data if not stream else response.read()
            raise KubeError(f"{what}: {_message(data)}", response.status)
        return response


def _changes(path: str, response: Any) -> Iterator[tuple[str, Object]]:
    try:
        rest = b""
        for chunk in response.stream(amt=None, decode_content=False):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    said = event["object"]
                    raise KubeError(f"watch {path}: {said.get('message')}", said.get("code", 0))
                yield event["type"], event["object"]
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise KubeError(f"watch {path} broke: {error}") from None
    finally:
        response.release_conn()
        response.close()


def _query(**parameters: str) -> str:
    given = {key: value for key, value in parameters.items() if value}
    return f"?{urlencode(given)}" if given else ""


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data[:300].decode(errors="replace") or "no reason given"
