"""Environment variables of a container, as its manifest asks for them."""

from __future__ import annotations

import base64
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kube.bed import redis
from tests.kube.bed.controlplane import GATEWAY, PORT
from tests.kube.bed.nodes import GPU, quantity
from tests.kube.bed.rest import ApiError, Object, Rest
from tests.kube.bed.sandbox import HOME

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Facts:
    """What the kubelet knows about a pod and its manifest does not."""

    address: str
    gpus: list[str] = field(default_factory=list)  #: counted as ``nvidia.com/gpu``
    claimed: list[str] = field(default_factory=list)  #: devices of its resource claims


def container_env(
    rest: Rest,
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    facts: Facts,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """All of it; raises ``ApiError`` if something that it refers to is missing."""
    space = pod["metadata"]["namespace"]
    env = {
        "PATH": f"{sys.prefix}/bin:{_PATH}:{redis.folder()}",
        "HOME": HOME,
        "HOSTNAME": pod["metadata"]["name"],
        "LANG": "C.UTF-8",
        "KUBERNETES_SERVICE_HOST": GATEWAY,
        "KUBERNETES_SERVICE_PORT": str(PORT),
        **extra,
        **_devices(container, facts),
    }
    for source in container.get("envFrom", ()):
        prefix = source.get("prefix", "")
        found = _all_of(rest, space, source)
        env.update({prefix + name: text for name, text in found.items()})
    for entry in container.get("env", ()):
        value: str | None
        if "valueFrom" in entry:
            value = _value_from(rest, pod, container, facts, entry["valueFrom"])
        else:
            value = expand(entry.get("value", ""), env)
        if value is not None:
            env[entry["name"]] = value
    return env


def expand(text: str, env: Mapping[str, str]) -> str:
    """``$(NAME)`` becomes the variable's value; ``$$(NAME)`` and unknown names stay."""

    def value(match: re.Match[str]) -> str:
        whole: str = match[0]
        return whole[1:] if whole.startswith("$$") else env.get(match[1], whole)

    return re.sub(r"\$?\$\(([A-Za-z_][\w.-]*)\)", value, text)


def field_of(pod: Mapping[str, Any], facts: Facts, path: str) -> str:
    """A field of the downward API."""
    meta, spec = pod["metadata"], pod["spec"]
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str(meta.get(match[1], {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        items = meta.get(path.partition(".")[2], {}).items()
        return "".join(f'{key}="{value}"\n' for key, value in items)
    return {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "status.podIP": facts.address,
        "status.podIPs": facts.address,
        "status.hostIP": GATEWAY,
        "spec.nodeName": spec["nodeName"],
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
    }[path]


def read_map(rest: Rest, space: str, kind: str, source: Mapping[str, Any]) -> dict[str, bytes]:
    """Keys of a config map or secret; empty if it is missing and optional."""
    name = source.get("name") or source.get("secretName")
    try:
        found = rest.get(f"/api/v1/namespaces/{space}/{kind}/{name}")
    except ApiError as error:
        if error.status == 404 and source.get("optional"):
            return {}
        raise
    return _decoded(found)


def _decoded(found: Object) -> dict[str, bytes]:
    data = found.get("data") or {}
    if found["kind"] == "Secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    binary = found.get("binaryData") or {}
    return {
        **{key: value.encode() for key, value in data.items()},
        **{key: base64.b64decode(value) for key, value in binary.items()},
    }


def _all_of(rest: Rest, space: str, source: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, kind in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
        if key in source:
            items = read_map(rest, space, kind, source[key]).items()
            found.update({name: value.decode() for name, value in items})
    return found


def _value_from(
    rest: Rest,
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    facts: Facts,
    source: Mapping[str, Any],
) -> str | None:
    if ref := source.get("fieldRef"):
        return field_of(pod, facts, ref["fieldPath"])
    if ref := source.get("resourceFieldRef"):
        side, _, name = ref["resource"].partition(".")
        amount = quantity(container.get("resources", {}).get(side, {}).get(name, "0"))
        unit = quantity(ref.get("divisor", "1")) or 1  # an absent one comes as 0
        return str(math.ceil(amount / unit))
    for key, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if ref := source.get(key):
            found = read_map(rest, pod["metadata"]["namespace"], kind, ref)
            if ref["key"] in found:
                return found[ref["key"]].decode()
            if not ref.get("optional"):
                raise ApiError(404, f"{ref['name']} has no key {ref['key']}")
    return None


def _devices(container: Mapping[str, Any], facts: Facts) -> dict[str, str]:
    resources = container.get("resources", {})
    seen = facts.gpus if GPU in resources.get("limits", {}) else []
    if resources.get("claims"):
        seen = [*seen, *facts.claimed]
    return {"NVIDIA_VISIBLE_DEVICES": ",".join(seen)} if seen else {}
