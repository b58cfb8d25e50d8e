"""``firepool simulate``: traces or invented load through the pool's own decisions, without Ray.

Parses, builds one load and one pool, runs a policy after the other, prints. Nothing is decided or
computed here; whatever is wrong with the options is one message.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from firepool_ray import config
from firepool_ray.core.model import PoolSpec, ProfileSpec, QueueSpec
from firepool_ray.errors import UsageError
from firepool_ray.sim import costs, generators, policies, report, traces, workload
from firepool_ray.sim.engine import Setup, simulate
from firepool_ray.sim.workload import Workload

INF = float("inf")
#: An option that shapes the pool, as ``--cap``, and a pool file exclude each other.
_POOL_OPTIONS = ("standbys", "cap", "lanes")


class _Load:
    """What is simulated, and what one pass over it tells."""

    def __init__(self, load: Workload) -> None:
        self.load = load
        #: the same as open-loop jobs: what bounds are computed of
        self.recorded: Callable[[], Iterator[traces.TraceJob]] = workload.unrolled(load).jobs
        self.outline = traces.outline(self.recorded())
        if not self.outline.jobs:
            raise UsageError(
                "there is no job to simulate: the trace (or what --where keeps) is empty"
            )
        self.load = replace(load, total=self.outline.jobs)


@click.command("simulate")
@click.argument("trace", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--generate",
    multiple=True,
    metavar="NAME[:KEY=VALUE,...]",
    help="Invent load: agents, rl, poisson or bursts. May be given several times, and with TRACE.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Use only rows of the trace with this value.",
)
@click.option("--spread", type=float, metavar="SECONDS", help="Begin each caller at a random time.")
@click.option(
    "--closed-loop/--open-loop",
    default=None,
    help="Whether the next call waits for the last one. Default: traces open, loops closed.",
)
@click.option("--cold", metavar="TIME", help="Cold start: seconds, a distribution or a CSV file.")
@click.option("--promote", metavar="TIME", help="Promotion of a standby, and handover.")
@click.option("--grow", metavar="TIME", help="Growth of a lane, before the cold start.")
@click.option("--standbys", type=click.IntRange(min=0), help="Beside each active worker.")
@click.option("--cap", type=click.FloatRange(min=0, min_open=True), help="Most GPUs in all.")
@click.option("--lanes", type=click.IntRange(min=1), help="Most lanes of each profile.")
@click.option(
    "--h2",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Price of a GPU reserved for a standby, as a part of an idle worker's.",
)
@click.option("-f", "--file", type=click.Path(dir_okay=False), help="Pool file (YAML).")
@click.option("--policy", metavar="POLICY", help="Keep-alive. Default: adaptive, or the file's.")
@click.option("--compare", metavar="POLICY,...", help="Several policies side by side.")
@click.option(
    "--closing", is_flag=True, help="Callers say that they are done after their last job."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--bound/--no-bound", "with_bound", default=True, help="Compute the least cost.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
@click.option("--plot", metavar="FILE.png", help="Draw the runs (needs the plots extra).")
@click.option(
    "--figures",
    metavar="FOLDER",
    help="Measure the promises on the traces there (-: those that need none).",
)
@click.option("--only", metavar="NAME", multiple=True, help="With --figures: this figure only.")
def simulate_command(**options: Any) -> None:
    """Run TRACE (CSV) or generated load through the pool's decisions.

    The header of a trace has caller,start_s,duration_s and perhaps profile,queue,gpus; times are
    in seconds, rows sorted by start_s. Policies: adaptive, fixed:SECONDS, always, never; and for
    comparison lru:SECONDS, greedy-dual, hybrid. Times: a number, lognormal:MEDIAN,SIGMA,
    uniform:LOW,HIGH, or a CSV file with the column cold_start_s.
    """
    if options["figures"] is not None:
        _figures(options)
        return
    if options["only"]:
        raise UsageError("--only names a figure: give --figures FOLDER with it")
    load = _Load(_load(options))
    spec = _pool(options, load.outline)
    prices = _costs(options)
    names = _policies(options)
    if options["with_bound"] and _needs_scipy(spec) and importlib.util.find_spec("scipy") is None:
        click.echo("No bound: that needs scipy, pip install 'firepool-ray[sim]'.", err=True)
        options["with_bound"] = False
    rows = [_run(load, spec, prices, name, options) for name in names]
    if options["plot"]:
        from firepool_ray.sim import plots

        plots.draw(rows, options["plot"])
    if options["as_json"]:
        click.echo(json.dumps(report.to_dict(rows)))
    else:
        click.echo(report.to_text(rows))


# -- what is simulated -------------------------------------------------------------------------


def _load(options: dict[str, Any]) -> Workload:
    closed, seed = options["closed_loop"], options["seed"]
    loads = [generators.parse(text).workload(seed) for text in options["generate"]]
    if closed is False:
        loads = [workload.unrolled(load) for load in loads]
    if options["trace"] is not None:
        loads.append(_trace(options, closed is True))
    elif options["where"] or options["spread"] is not None:
        raise UsageError("--where and --spread are about a trace: name one, or leave them out")
    if not loads:
        raise UsageError("name a trace (CSV), or give --generate agents, rl, poisson or bursts")
    return workload.together(*loads)


def _trace(options: dict[str, Any], closed: bool) -> Workload:
    where = dict(_pairs(options["where"]))
    path, spread_s, seed = options["trace"], options["spread"], options["seed"]

    def read() -> Iterator[traces.TraceJob]:
        return traces.read(path, where=where, spread_s=spread_s, seed=seed, sort=closed)

    if closed:
        return workload.closed_loop(read())
    return workload.open_loop(list(read()) if spread_s is not None else read)


def _pairs(texts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for text in texts:
        column, equals, value = text.partition("=")
        if not equals or not column:
            raise UsageError(f"--where {text}: write COLUMN=VALUE, as --where tool=Bash")
        yield column.strip(), value.strip()


def _pool(options: dict[str, Any], outline: traces.Outline) -> PoolSpec:
    """From the pool file, or one that has what the load asks for."""
    if options["file"] is not None:
        given = [f"--{name}" for name in _POOL_OPTIONS if options[name] is not None]
        if given:
            raise UsageError(f"{', '.join(given)}: the pool file says that; give one or the other")
        return config.load(options["file"]).to_spec()
    standbys = 1 if options["standbys"] is None else options["standbys"]
    cap = options["cap"] if options["cap"] is not None else INF
    lanes = options["lanes"] or config.UNBOUNDED_LANES
    widest = max(outline.profiles.values())
    if widest > cap:
        raise UsageError(f"--cap {cap:g}: a worker of {widest:g} GPUs never fits; raise the cap")
    return PoolSpec(
        profiles=tuple(
            ProfileSpec(
                name,
                gpus=gpus,
                standbys=standbys,
                max_lanes=lanes,
                keep_alive="adaptive",
                # a lane without standby serves a cold start only: that can grow one as well
                lane_keep_s=None if standbys else 0.0,
            )
            for name, gpus in outline.profiles.items()
        ),
        queues=tuple(QueueSpec(name) for name in outline.queues),
        max_gpus=cap,
    )


def _costs(options: dict[str, Any]) -> costs.Costs:
    given = {name: options[name] for name in ("cold", "promote", "grow")}
    return costs.Costs(
        **{name: costs.parse(text) for name, text in given.items() if text is not None}
    )


def _policies(options: dict[str, Any]) -> list[str]:
    """Names of policies; "" for what the pool file says."""
    if options["compare"] is not None:
        if options["policy"] is not None:
            raise UsageError("--policy runs one, --compare several: give one of them")
        names = [name.strip() for name in options["compare"].split(",") if name.strip()]
        if not names:
            raise UsageError("--compare takes policies with commas between, as adaptive,always")
        return list(dict.fromkeys(names))
    if options["policy"] is not None:
        return [options["policy"]]
    return [""] if options["file"] is not None else ["adaptive"]


# -- one run -----------------------------------------------------------------------------------


def _run(
    load: _Load, spec: PoolSpec, prices: costs.Costs, name: str, options: dict[str, Any]
) -> report.Row:
    label = name or "pool file"
    objects = None
    if name:
        spec, objects = policies.choose(spec, name)
    setup = Setup(
        spec,
        prices,
        options["seed"],
        policies=objects,
        closing=options["closing"],
        h2=options["h2"],
    )
    schedule: list[traces.TraceJob] = []
    ran = schedule.append if options["with_bound"] else None
    with _bar(load.outline.jobs, label) as progress:
        result = simulate(setup, load.load, progress, ran)
    if not options["with_bound"]:
        return report.Row(label, result)
    as_run = _bound(schedule, spec, prices, options["h2"], spec.max_gpus)
    recorded = _bound(load.recorded(), spec, prices, options["h2"], INF)
    return report.Row(label, result, as_run, recorded)


def _needs_scipy(spec: PoolSpec) -> bool:
    """Its bound is a linear programme."""
    return spec.max_gpus < INF or any(profile.standbys for profile in spec.profiles)


def _bound(
    jobs: Iterable[traces.TraceJob],
    spec: PoolSpec,
    prices: costs.Costs,
    h2: float,
    cap_gpus: float,
) -> float:
    """The least cost of a schedule; with standbys a cap is left out, which only lowers it."""
    from firepool_ray.sim import bound

    pairing = bound.pair(jobs)
    cold_s = prices.cold.mean_s
    if any(profile.standbys for profile in spec.profiles):
        return bound.pooled(pairing, cold_s, bound.Standby(prices.promote.mean_s, h2))
    if cap_gpus < INF:
        return bound.capped(pairing, cap_gpus, cold_s)
    return bound.uncapped(pairing, cold_s)


@contextmanager
def _bar(jobs: int, label: str) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal's standard error; nothing elsewhere."""
    if not _on_terminal():
        yield None
        return
    with click.progressbar(length=jobs, label=label, file=sys.stderr) as bar:
        yield lambda ended: bar.update(ended - bar.pos)
        bar.update(jobs - bar.pos)


def _on_terminal() -> bool:
    return sys.stderr.isatty()


# -- figures -----------------------------------------------------------------------------------


def _figures(options: dict[str, Any]) -> None:
    from firepool_ray.sim import figures

    folder = None if options["figures"] == "-" else Path(options["figures"])
    if folder is not None and not folder.is_dir():
        raise UsageError(f"--figures {folder}: no such folder")
    told = _on_terminal()
    measured = figures.run(
        folder, options["only"], lambda what: click.echo(what, err=True) if told else None
    )
    if options["as_json"]:
        click.echo(json.dumps([figure.to_dict() for figure in measured]))
    else:
        for line in figures.lines(measured):
            click.echo(line)
