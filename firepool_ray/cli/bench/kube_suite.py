"""Runs the groups of ``firepool bench --kube`` one after the other and judges them.

A group that fails costs its own figures only. Everything happens with the credentials of whoever
calls, in the kubeconfig's namespace, and nothing is left there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from firepool_ray.cli.bench.figures import Figure, Target, judge, not_measured
from firepool_ray.cli.bench.kube_figures import GROUPS, TARGETS
from firepool_ray.cli.bench.kube_site import Where
from firepool_ray.config import PoolConfig
from firepool_ray.errors import FirepoolError, UnknownName
from firepool_ray.kube.api import Kube

#: What of a pool file's ``kubernetes`` part is taken over: where pods come from and may run.
_TAKEN = (
    "namespace",
    "image",
    "ray_version",
    "node_selector",
    "tolerations",
    "annotations",
    "image_pull_secrets",
    "run_as_user",
    "ray_start_params",
    "redis_image",
)


def measure(only: Sequence[str] = (), pool: PoolConfig | None = None) -> list[Figure]:
    """All figures, or those named. Raises ``UnknownName``, ``KubeError`` without a cluster."""
    for name in only:
        if name not in TARGETS:
            raise UnknownName("figure", name, TARGETS)
    where = _where(pool)
    chosen = {
        group: wanted
        for group, targets in GROUPS.items()
        if (wanted := [t for t in targets if not only or t.name in only])
    }
    figures: list[Figure] = []
    for group, targets in chosen.items():
        began = time.monotonic()
        click.echo(f"{group}: {', '.join(t.name for t in targets)}", file=sys.stderr)
        for figure in _measure(group, targets, where):
            click.echo(f"  {figure.name} {figure.value} ({figure.detail})", file=sys.stderr)
            figures.append(figure)
        click.echo(f"  {time.monotonic() - began:.0f} s", file=sys.stderr)
    return figures


def _measure(group: str, targets: Sequence[Target], where: Where) -> Iterator[Figure]:
    from firepool_ray.cli.bench import kube_groups

    missing = {target.name: target for target in targets}
    try:
        for measured in kube_groups.GROUPS[group](where):
            if target := missing.pop(measured.name, None):
                yield judge(target, measured)
    except (FirepoolError, AssertionError) as error:
        why = str(error)
    except (ArithmeticError, LookupError, ValueError) as error:  # of too few values
        why = f"{type(error).__name__}: {error}"
    else:
        why = f"the group {group!r} did not come to it"
    for target in missing.values():
        yield not_measured(target, why)


def _where(pool: PoolConfig | None) -> Where:
    settings = pool.kubernetes if pool is not None else None
    if pool is None or settings is None:
        return Where(Kube.connect(agent="bench"), {})
    given: dict[str, Any] = settings.model_dump(mode="json", exclude_defaults=True)
    base = {key: given[key] for key in _TAKEN if key in given}
    gpus = next((p.pod.gpu_resource for p in pool.profiles.values() if p.gpus), "nvidia.com/gpu")
    return Where(Kube.connect(settings.namespace, "bench"), base, gpus)
