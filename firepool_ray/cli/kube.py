"""``firepool kube``: the pool's manifests, printed, applied, shown, checked and taken away.

Parses, calls one function of ``firepool_ray.kube``, prints. Imports Kubernetes' client only when a
command needs it, and Ray never.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from firepool_ray import config
from firepool_ray.cli.render import table
from firepool_ray.errors import UsageError

_file = click.option(
    "-f", "--file", required=True, type=click.Path(dir_okay=False), help="Pool file (YAML)."
)
_namespace = click.option(
    "-n", "--namespace", default="", help="Where the pool file names none (default: kubeconfig's)."
)


def _timeout(default_s: float) -> Callable[[Any], Any]:
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0),
        default=default_s,
        show_default=True,
        help="Seconds to wait at most.",
    )


@click.group("kube")
def kube_command() -> None:
    """Run the pool on Kubernetes: a RayCluster and what it needs.

    Everything is applied with your own credentials ($KUBECONFIG, ~/.kube/config).
    """


@kube_command.command()
@_file
@_namespace
@click.option("--rayjob", metavar="ENTRYPOINT", help="Print a RayJob for this command instead.")
@click.option("--name", default="trainer", show_default=True, help="Name of that RayJob.")
@click.option("--working-dir", default="", help="Its files: the address of a zip, or in the image.")
@click.option("--env", multiple=True, metavar="KEY=VALUE", help="A variable of its environment.")
def render(
    file: str,
    namespace: str,
    rayjob: str | None,
    name: str,
    working_dir: str,
    env: tuple[str, ...],
) -> None:
    """Print the manifests of a pool, or of a trainer on it, in order of application."""
    pool = config.load(file)
    from firepool_ray.kube import manifests

    if rayjob is None:
        if env or working_dir:
            raise UsageError("--env and --working-dir are those of a RayJob: give --rayjob too")
        documents = manifests.documents(pool, namespace)
    else:
        document = manifests.rayjob_document(
            pool,
            rayjob,
            name,
            namespace=namespace,
            working_dir=working_dir,
            env=dict(_pair(text) for text in env),
        )
        documents = [document]
    click.echo(manifests.render(documents), nl=False)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"--env {text!r}: write KEY=VALUE")
    return key, value


@kube_command.command()
@_file
@_namespace
@_timeout(600.0)
@click.option("--roll", is_flag=True, help="Replace pods that have an old form, one at a time.")
def up(file: str, namespace: str, timeout_s: float, roll: bool) -> None:
    """Apply the manifests and wait until the cluster stands.

    The pool starts by itself in the system pod. Where a group may have fewer pods than it has, the
    surplus is drained first: running jobs have their pods' grace to finish. Exits with 1 and
    Kubernetes' reasons if the cluster does not stand in time; it goes on trying.
    """
    pool = config.load(file)
    from firepool_ray.kube import deploy
    from firepool_ray.kube.api import Kube

    deploy.up(Kube.connect(namespace), pool, timeout_s=timeout_s, say=_say, replace=roll)


@kube_command.command()
@_file
@_namespace
@_timeout(300.0)
def down(file: str, namespace: str, timeout_s: float) -> None:
    """Delete what `up` applied, and wait until its pods have gone. Running jobs are lost."""
    pool = config.load(file)
    from firepool_ray.kube import deploy
    from firepool_ray.kube.api import Kube

    deploy.down(Kube.connect(namespace), pool, timeout_s=timeout_s, say=_say)


@kube_command.command()
@_file
@_namespace
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def status(file: str, namespace: str, as_json: bool) -> None:
    """Show the cluster, its groups and pods, and what its queue says.

    What lanes and workers do, `firepool status` shows. Exits with 1 if something is missing.
    """
    pool = config.load(file)
    from firepool_ray.kube import standing
    from firepool_ray.kube.api import Kube

    described = standing.status(Kube.connect(namespace), pool)
    click.echo(json.dumps(described) if as_json else status_text(described))
    sys.exit(1 if described["missing"] else 0)


@kube_command.command()
@_file
@_namespace
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def doctor(file: str, namespace: str, as_json: bool) -> None:
    """Check what the pool needs of the cluster, one line each.

    Changes nothing that stays: manifests are tried as a dry run, and where there is no RayCluster
    yet, an empty suspended one is made for a moment to see that Ray's operator works. Exits with 1
    if there is a problem.
    """
    pool = config.load(file)
    from firepool_ray.kube import doctor as checks
    from firepool_ray.kube.api import Kube

    found = checks.examine(Kube.connect(namespace), pool)
    if as_json:
        click.echo(json.dumps([check._asdict() for check in found]))
    else:
        for check in found:
            click.echo(f"{check.verdict:<7}  {check.what}: {check.detail}")
    sys.exit(1 if any(check.verdict == "problem" for check in found) else 0)


def _say(text: str) -> None:
    click.echo(text, err=True)


def status_text(said: Mapping[str, Any]) -> str:
    """The page of ``firepool kube status``."""
    queue = f", queue {said['queue']}" if said["queue"] else ""
    head = f"RayCluster {said['cluster']} in namespace {said['namespace']}: {said['state']}{queue}"
    missing = [f"{what}: {why}" for what, why in said["missing"].items()]
    groups = table(
        ("group", "profile", "wanted", "ready", "leaving", "min", "max"),
        (
            (
                row["group"],
                row["profile"] or "-",
                *(str(row[key]) for key in ("wanted", "ready", "leaving", "min", "max")),
            )
            for row in said["groups"]
        ),
    )
    pods = table(
        ("pod", "group", "host", "gpus", "phase", "state"),
        (
            (
                pod["name"],
                pod["group"],
                pod["host"] or "-",
                pod["gpus"] or "-",
                pod["phase"],
                _pod_state(pod),
            )
            for pod in said["pods"]
        ),
    )
    conditions = (
        f"{row['type']} {row['status']} {row['reason']} {row['message']}".rstrip()
        for row in said["conditions"]
    )
    return "\n\n".join(
        part
        for part in (
            head,
            _titled("Missing", missing),
            _titled("Groups", groups.splitlines()),
            _titled("Pods", pods.splitlines()),
            _titled("Admission", said["admission"]),
            _titled("Conditions", conditions),
        )
        if part
    )


def _pod_state(pod: Mapping[str, Any]) -> str:
    if pod["leaving"]:
        return "leaving"
    return pod["trouble"] or ("ready" if pod["ready"] else "coming")


def _titled(title: str, lines: Iterable[str]) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"{title}\n{body}" if body else ""
