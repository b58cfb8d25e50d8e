"""The commands: each parses, calls one function below, and prints. No decision is made here."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import click

from firepool_ray import config
from firepool_ray.cli import render
from firepool_ray.cli.kube import kube_command
from firepool_ray.cli.simulate import simulate_command
from firepool_ray.errors import ConfigError, FirepoolError, PoolUnavailable, UsageError

# Commands import ``runtime`` and ``bench`` when they run: those import Ray, which takes a second
# that `firepool --help` and a mistyped option should not cost.

WATCH_S = 1.0
#: Where the main job lies in a checkout, and in an installed package.
_PACKAGE = Path(__file__).resolve().parents[1]
DEMOS = (
    _PACKAGE.parent / "examples" / "rl_rollouts" / "train.py",
    _PACKAGE / "_examples" / "rl_rollouts" / "train.py",
)


class _Shown(click.ClickException):
    """An error of ours as one message; exits with 2 for a wrong call, 1 for anything else."""

    def __init__(self, error: FirepoolError) -> None:
        super().__init__(str(error))
        self.exit_code = 2 if isinstance(error, UsageError) else 1  # type: ignore[misc]


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FirepoolError as error:
            raise _Shown(error) from error


_address = click.option(
    "--address", metavar="ADDRESS", help="Ray cluster (default: RAY_ADDRESS, else this machine's)."
)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="firepool-ray")
def main() -> None:
    """A pool of warm Ray workers for short isolated GPU jobs."""


@main.command()
@click.option(
    "-f", "--file", required=True, type=click.Path(dir_okay=False), help="Pool file (YAML)."
)
@click.option("--wait/--no-wait", default=True, help="Wait until all min_lanes are ready.")
@_address
def up(file: str, wait: bool, address: str | None) -> None:
    """Start a pool on a running Ray cluster.

    It stays until `firepool down`, whoever comes and goes.
    """
    asked = config.load(file)
    from firepool_ray.runtime import pool, session

    with session.cluster(address):
        if pool.find_pool() is not None:
            _check_same(asked, config.PoolConfig.from_dict(session.settings()))
            click.echo("The pool is already running, with these settings.")
        else:
            pool.start_pool(asked, embedded=False)
            click.echo(f"Started the pool: profiles {', '.join(asked.profiles)}.")
        if wait:
            _wait_for_lanes(asked, session.describe)


def _check_same(asked: config.PoolConfig, running: config.PoolConfig) -> None:
    capacity = {name: p.max_lanes for name, p in running.profiles.items() if p.max_lanes}
    if asked.with_capacity(capacity) != running:
        raise ConfigError(
            "a pool with other settings runs on this cluster: end it with `firepool down` first"
        )


def _wait_for_lanes(asked: config.PoolConfig, describe: Callable[[], dict[str, Any]]) -> None:
    wanted = sum(profile.min_lanes for profile in asked.profiles.values())
    if not wanted:
        return
    limit_s = max(p.grow_deadline_s + p.start_deadline_s for p in asked.profiles.values())
    deadline = time.monotonic() + limit_s
    with click.progressbar(length=wanted, label="Growing lanes", file=sys.stderr) as bar:
        while (ready := _ready_lanes(described := describe())) < wanted:
            bar.update(ready - bar.pos)
            for profile in described["profiles"]:
                if profile["breaker"] == "open":
                    raise PoolUnavailable(
                        f"profile {profile['profile']} does not start: {profile['last_failure']}"
                    )
            if time.monotonic() > deadline:
                raise PoolUnavailable(
                    f"only {ready} of {wanted} lanes are ready after {limit_s:.0f} s: "
                    "see `firepool status`"
                )
            time.sleep(0.2)
        bar.update(wanted - bar.pos)
    click.echo(f"{ready} of {wanted} lanes are ready.")


@contextlib.contextmanager
def _output() -> Iterator[TextIO]:
    """Yields the output for what was asked; what Ray prints there by itself goes to stderr.

    Ray tells every driver of errors anywhere in the cluster that way.
    """
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        yield out


def _ready_lanes(described: dict[str, Any]) -> int:
    return sum(
        lane["state"] == "ready" and any(w["state"] != "starting" for w in lane["workers"])
        for lane in described["lanes"]
    )


@main.command()
@click.option(
    "-f", "--file", required=True, type=click.Path(dir_okay=False), help="Pool file (YAML)."
)
@_address
def keep(file: str, address: str | None) -> None:
    """Keep a pool running: start it, and start it again whenever it is gone.

    For the system pod of a pool on Kubernetes. Never returns; waits for Ray where it is not up yet.
    """
    from firepool_ray.runtime.keep import supervise

    supervise(file, address)


@main.command()
@_address
def down(address: str | None) -> None:
    """End the pool, its jobs and all it holds."""
    from firepool_ray.runtime import pool, session

    with session.cluster(address):
        handle = pool.find_pool()
        if handle is None:
            click.echo("No pool is running.")
            return
        pool.stop_pool(handle)
        click.echo("The pool has ended.")


@main.command()
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
@_address
def status(watch: bool, as_json: bool, address: str | None) -> None:
    """Show lanes, workers, queues and latencies."""
    from firepool_ray.runtime import session

    with _output() as out, session.cluster(address), contextlib.suppress(KeyboardInterrupt):
        while True:
            described = session.describe()
            page = json.dumps(described) if as_json else render.status(described)
            if watch and not as_json and out.isatty():
                click.clear()
            click.echo(page, file=out)
            if not watch:
                return
            time.sleep(WATCH_S)


@main.command()
@click.argument("job_or_caller")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@_address
def explain(job_or_caller: str, as_json: bool, address: str | None) -> None:
    """Say why something waits, or where time went.

    JOB_OR_CALLER is a job id (or its beginning), a caller, or QUEUE/CALLER.
    """
    from firepool_ray.runtime import session

    with _output(), session.cluster(address):
        explained = session.explain(job_or_caller)
    click.echo(json.dumps(explained) if as_json else render.explanation(explained))
    if explained["kind"] == "unknown":
        sys.exit(1)


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """Learn CartPole on a pool of its own.

    ARGUMENTS go to the script; `firepool demo -- --help` lists them.
    """
    script = next((path for path in DEMOS if path.is_file()), None)
    if script is None:
        raise PoolUnavailable(f"the example is not installed; looked at {DEMOS[0]}")
    sys.exit(subprocess.run([sys.executable, str(script), *arguments], check=False).returncode)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--only", metavar="NAME", multiple=True, help="Measure this figure only.")
@click.option("--loops", is_flag=True, help="Instead: agent and RL loops, live and simulated.")
@click.option("--kube", is_flag=True, help="Instead: pods of a cluster with KubeRay (kubeconfig).")
@click.option(
    "-f",
    "--file",
    type=click.Path(dir_okay=False),
    help="With --kube: a pool file; its `kubernetes` part says image and place of the pods.",
)
def bench(as_json: bool, only: tuple[str, ...], loops: bool, kube: bool, file: str | None) -> None:
    """Measure the pool against plain Ray, or on Kubernetes against a fresh pod per job.

    Exits with 0 when everything could be measured, whether or not the targets are reached.
    """
    if loops and (only or kube):
        raise UsageError("--loops is a benchmark of its own: leave --only and --kube out")
    if file and not kube:
        raise UsageError("-f goes with --kube")
    if loops:
        _bench_loops(as_json)
        return
    from firepool_ray.cli.bench import figures as known
    from firepool_ray.cli.bench import kube_figures, kube_suite, report, suite

    if kube:
        settings = config.load(file) if file else None
        figures, targets = kube_suite.measure(only, settings), kube_figures.TARGETS
    else:
        figures, targets = suite.measure(only), known.TARGETS
    click.echo(report.as_json(figures) if as_json else report.as_text(figures, targets))
    sys.exit(0 if all(figure.value is not None for figure in figures) else 1)


def _bench_loops(as_json: bool) -> None:
    from firepool_ray.cli.bench import loops, loops_report

    rows: list[loops.Row] = []
    with click.progressbar(
        loops.measure(), length=len(loops.POLICIES) + 1, label="Running loops", file=sys.stderr
    ) as running:
        rows.extend(running)
    click.echo(loops_report.as_json(rows) if as_json else loops_report.as_text(rows))


main.add_command(simulate_command)
main.add_command(kube_command)
