"""What a run comes to: plain numbers, ready for JSON. Made by the engine, read by reports.

Costs are in GPU-seconds and follow one formula for every policy and for the bound:
``idle + h2 * free + C * GPUs of cold starts + P * GPUs of promotions`` with C and P the mean costs.
Time spent starting is reported beside it and priced through C and P.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from firepool_ray.observe import histogram
from firepool_ray.sim.accounts import STATES, Curve

if TYPE_CHECKING:
    from firepool_ray.sim.engine import Setup, _Run

INF = float("inf")
#: Sources that did not have to wait for a process to start.
READY = ("warm", "standby", "handover")


@dataclass(frozen=True, slots=True)
class LatencyCounts:
    """Start latencies by source, as histogram counts."""

    by_source: Mapping[str, histogram.Counts]

    @property
    def counts(self) -> histogram.Counts:
        return histogram.merge(self.by_source.values())

    def percentile(self, q: float, source: str = "") -> float | None:
        """In seconds, of all jobs or of one source; None where there were none."""
        return histogram.percentile(self.by_source[source] if source else self.counts, q)


@dataclass(frozen=True, slots=True)
class Result:
    jobs: int
    sources: dict[str, int]  #: jobs served, by source
    failed: dict[str, int]  #: jobs that ended without having run, by cause
    first_failure: str
    latencies: LatencyCounts
    gpu_s: dict[str, float]  #: GPU-seconds of lanes, by state
    starts: dict[str, int]  #: cold, standby and handover cost GPU time; a refill does not
    cost_gpu_s: float
    begin_s: float
    span_s: float  #: first arrival to last end
    peak_gpus: float  #: the most that lanes held at one time
    peak_wanted_gpus: float  #: the most that jobs ran on and waited for at one time
    max_gpus: float
    always_on_gpu_s: float  #: all that may ever be held (the cap, else the peak), all the time
    jain_queues: float
    jain_callers: float
    longest_wait_s: dict[str, float]  #: by queue
    sessions: int
    loop_s: float  #: mean length of a closed-loop session
    events: int  #: handled by the controller's machine
    wall_s: float
    curve: Curve
    seed: int

    @property
    def warm_share(self) -> float:
        """Part of the jobs whose caller's own idle worker served them."""
        return self.sources["warm"] / max(1, sum(self.sources.values()))

    @property
    def ready_share(self) -> float:
        """Part of the jobs served without a cold start: warm, standby or handover."""
        return sum(self.sources[s] for s in READY) / max(1, sum(self.sources.values()))

    @property
    def held_gpu_s(self) -> float:
        return sum(self.gpu_s.values())

    def peak_ready_share(self, part: float = 0.1) -> float:
        """``ready_share`` at peak: in the busiest bins of the curve, up to this part of them."""
        served = self.curve.served
        totals: list[int] = [sum(column) for column in zip(*served.values(), strict=True)]
        order = sorted(range(len(totals)), key=lambda i: -totals[i])
        busiest = order[: max(1, round(part * sum(1 for total in totals if total)))]
        ready = sum(served[source][i] for source in READY for i in busiest)
        return ready / max(1, sum(totals[i] for i in busiest))

    def to_dict(self, *, curve: bool = True) -> dict[str, Any]:
        """For JSON; infinite values are None."""
        shown: dict[str, Any] = {
            "jobs": self.jobs,
            "sources": dict(self.sources),
            "failed": dict(self.failed),
            "warm_share": self.warm_share,
            "ready_share": self.ready_share,
            "peak_ready_share": self.peak_ready_share(),
            "start_latency_s": {
                name: self.latencies.percentile(q)
                for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
            },
            "gpu_s": dict(self.gpu_s),
            "held_gpu_s": self.held_gpu_s,
            "starts": dict(self.starts),
            "cost_gpu_s": self.cost_gpu_s,
            "span_s": self.span_s,
            "peak_gpus": self.peak_gpus,
            "peak_wanted_gpus": self.peak_wanted_gpus,
            "max_gpus": self.max_gpus if self.max_gpus < INF else None,
            "always_on_gpu_s": self.always_on_gpu_s,
            "share_of_always_on": self.held_gpu_s / max(self.always_on_gpu_s, 1e-9),
            "jain_queues": self.jain_queues,
            "jain_callers": self.jain_callers,
            "longest_wait_s": dict(self.longest_wait_s),
            "sessions": self.sessions,
            "loop_s": self.loop_s,
            "events": self.events,
            "wall_s": self.wall_s,
            "seed": self.seed,
        }
        if curve:
            shown["curve"] = {
                "begin_s": self.curve.begin_s,
                "bin_s": self.curve.bin_s,
                "gpus": self.curve.gpus,
                "served": self.curve.served,
            }
        return shown


def summarise(run: _Run, setup: Setup, wall_s: float) -> Result:
    """Read a run's books once it is over."""
    gpu_s = dict(zip(STATES, run.accounts.gpu_s, strict=True))
    starts, costs = run.starts, setup.costs
    span_s = run.last_end_s - run.begin_s
    max_gpus = setup.spec.max_gpus
    cost_gpu_s = (
        gpu_s["idle"]
        + setup.h2 * gpu_s["free"]
        + costs.cold.mean_s * starts.cold_gpus
        + costs.promote.mean_s * starts.promoted_gpus
    )
    return Result(
        jobs=run.jobs,
        sources=run.served,
        failed=run.failed,
        first_failure=run.first_failure,
        latencies=LatencyCounts(run.latencies.counts),
        gpu_s=gpu_s,
        starts=starts.counts,
        cost_gpu_s=cost_gpu_s,
        begin_s=run.begin_s,
        span_s=span_s,
        peak_gpus=run.accounts.peak_gpus,
        peak_wanted_gpus=run.fairness.peak_wanted_gpus,
        max_gpus=max_gpus,
        always_on_gpu_s=(max_gpus if max_gpus < INF else run.accounts.peak_gpus) * span_s,
        jain_queues=run.fairness.jain_queues(),
        jain_callers=run.fairness.jain_callers(),
        longest_wait_s=run.latencies.longest_s,
        sessions=run.sessions,
        loop_s=run.sessions_s / run.sessions if run.sessions else 0.0,
        events=run.events,
        wall_s=wall_s,
        curve=run.accounts.curve(),
        seed=setup.seed,
    )
