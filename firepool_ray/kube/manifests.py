"""From a pool file to what is applied, as plain dicts in order of application, and as YAML.

Pure: asks no cluster. ``firepool kube render`` prints it, ``deploy`` applies it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import yaml

from firepool_ray.config import PoolConfig
from firepool_ray.config.kubernetes import KubernetesConfig
from firepool_ray.errors import ConfigError
from firepool_ray.kube import access, extras, raycluster, sharing
from firepool_ray.kube.api import Object, kind_of
from firepool_ray.kube.templates import POOL_LABEL

#: Where a pool file, a command and a connection all say nothing.
DEFAULT_NAMESPACE = "default"
MANAGED_BY = "app.kubernetes.io/managed-by"


class Document(NamedTuple):
    purpose: str  #: one sentence for people
    manifest: Object


def settings_of(pool: PoolConfig) -> KubernetesConfig:
    """Raises ``ConfigError`` for a pool file that names no RayCluster."""
    if pool.kubernetes is None:
        raise ConfigError(
            "the pool file has no key 'kubernetes': add it (`kubernetes: {}` takes all defaults)"
        )
    return pool.kubernetes


def namespace_of(pool: PoolConfig, namespace: str = "") -> str:
    """``namespace`` counts where the pool file says nothing."""
    return settings_of(pool).namespace or namespace or DEFAULT_NAMESPACE


def documents(pool: PoolConfig, namespace: str = "") -> list[Document]:
    """Everything of a pool, in order of application. Raises ``ConfigError``."""
    place = namespace_of(pool, namespace)
    return [Document(why, _finished(manifest, pool, place)) for why, manifest in _all(pool, place)]


def rayjob_document(
    pool: PoolConfig,
    entrypoint: str,
    name: str,
    *,
    namespace: str = "",
    working_dir: str = "",
    env: Mapping[str, str] | None = None,
) -> Document:
    """A trainer on the pool. Raises ``ConfigError``."""
    settings_of(pool)
    job = raycluster.rayjob(pool, entrypoint, name, working_dir=working_dir, env=env)
    return Document(
        "A trainer on the pool, which is there before and after it.",
        _finished(job, pool, namespace_of(pool, namespace)),
    )


def render(documents: Iterable[Document]) -> str:
    """As YAML, each document below what it is for."""
    return "---\n".join(
        _comment(document.purpose) + yaml.dump(document.manifest, Dumper=_Dumper, **_STYLE)
        for document in documents
    )


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, 98))


def _all(pool: PoolConfig, namespace: str) -> Iterable[tuple[str, Object]]:
    settings = settings_of(pool)
    yield from access.access(pool, namespace)
    yield extras.pool_file(pool)
    for claim in sharing.claims_of(pool):
        yield "A device that worker groups of different images share.", claim
    for volume in sharing.lock_volumes(pool):
        yield "The lock that keeps their workers off the device while another has it.", volume
    if settings.redis == "managed":
        yield from extras.redis(settings)
    if settings.network_policy:
        yield extras.network_policy(settings)
    if not settings.redis:
        yield extras.disruption_budget(settings)
    if settings.monitors:
        yield from extras.monitors(settings)
    yield (
        f"The Ray cluster of the pool. Its image ({settings.image}) has Ray and firepool-ray in "
        "it. Nothing but Ray's autoscaler scales its pods.",
        raycluster.raycluster(pool, access.account_name(pool)),
    )


def _finished(manifest: Object, pool: PoolConfig, namespace: str) -> Object:
    """With its namespace, and with the labels by which ``down`` finds it again."""
    metadata = dict(manifest["metadata"])
    if kind_of(manifest).namespaced:
        metadata.setdefault("namespace", namespace)
    ours = {MANAGED_BY: "firepool", POOL_LABEL: settings_of(pool).name}
    metadata["labels"] = {**ours, **metadata.get("labels", {})}
    order = ("name", "namespace", "labels", "annotations")
    ordered = {key: metadata[key] for key in order if key in metadata}
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": ordered,
        **{key: value for key, value in manifest.items() if key not in _HEAD},
    }


_HEAD = ("apiVersion", "kind", "metadata")
_STYLE: dict[str, Any] = {"sort_keys": False, "width": 100, "allow_unicode": True}


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks; nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
