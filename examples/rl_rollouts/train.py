"""Learn CartPole with a policy gradient whose rollouts and evaluation run in a pool.

    python train.py                                       # starts a small Ray of its own
    ray job submit --working-dir . -- python train.py     # on a cluster, in its pool if it has one

Two callers share two GPU lanes: ``rollouts`` in queue ``rl`` and ``eval`` in queue ``eval``. At the
end it prints how the jobs got their workers, how long they took to start, and the wall time of the
same loop with a fresh Ray actor per batch of rollouts. Exits with 1 if it did not learn.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import ray
from cartpole import Policy, Rollout, evaluate, rollout
from learner import Learner

import firepool_ray as fp

BATCHES = 8  # jobs per iteration
EPISODES = 16  # per job
EVALUATE_EVERY = 5
GOAL = 150.0

Play = Callable[[Policy, int], list[Rollout]]


class PoolPlayer:
    """Plays the batches of an iteration as jobs of the pool, and keeps the jobs."""

    def __init__(self, seed: int) -> None:
        # A rollout is made from its arguments alone, so it may run again if its worker is lost.
        self._pool = fp.options(queue="rl", caller="rollouts", max_retries=2)
        self._seed = seed
        self.jobs: list[fp.Job] = []

    def __call__(self, policy: Policy, iteration: int) -> list[Rollout]:
        jobs = [
            self._pool.submit(rollout, policy, (self._seed, iteration, batch), EPISODES)
            for batch in range(BATCHES)
        ]
        self.jobs += jobs
        return [job.result() for job in jobs]


class FreshActorPlayer:
    """Plays the same batches, each on a Ray actor of its own that dies afterwards."""

    def __init__(self, seed: int, width: int) -> None:
        # No resources asked for: this way is not made to wait for anything but its processes.
        self._actor_class = ray.remote(num_cpus=0)(Roller)
        self._seed = seed
        self._width = width  # as many at a time as the pool has lanes

    def __call__(self, policy: Policy, iteration: int) -> list[Rollout]:
        actors: dict[ray.ObjectRef, ray.actor.ActorHandle] = {}
        refs = []
        for batch in range(BATCHES):
            if len(actors) == self._width:
                done, _ = ray.wait(list(actors))
                ray.kill(actors.pop(done[0]))
            actor = self._actor_class.remote()
            refs.append(actor.rollout.remote(policy, (self._seed, iteration, batch), EPISODES))
            actors[refs[-1]] = actor
        rollouts = ray.get(refs)
        for actor in actors.values():
            ray.kill(actor)
        return rollouts


class Roller:
    def rollout(self, policy: Policy, seed: tuple[int, ...], episodes: int) -> Rollout:
        return rollout(policy, seed, episodes)


class Evaluator:
    """Evaluates snapshots of the policy beside the training, as another caller."""

    def __init__(self, seed: int) -> None:
        self._pool = fp.options(queue="eval", caller="eval", max_retries=2)
        self._seed = seed
        self.jobs: dict[int, fp.Job] = {}

    def start(self, policy: Policy, iteration: int) -> None:
        self.jobs[iteration] = self._pool.submit(evaluate, policy, (self._seed, iteration), 16)

    def final(self, policy: Policy) -> float:
        seeds = [(self._seed, 1000, part) for part in range(4)]
        return float(np.mean(list(self._pool.map(evaluate, [policy] * 4, seeds, [16] * 4))))


def learn(
    learner: Learner, iterations: range, play: Play, played: Callable[[int], None] = lambda _: None
) -> list[float]:
    """The loop itself. Returns the mean return of each iteration; ``play`` makes the rollouts."""
    means = []
    for iteration in iterations:
        rollouts = play(learner.policy, iteration)
        means.append(float(np.concatenate([batch.lengths for batch in rollouts]).mean()))
        played(iteration)
        learner.update(rollouts)
    return means


def train(learner: Learner, seed: int, iterations: int) -> tuple[list[float], list[fp.Job]]:
    """Learn through the pool, tell how it goes, return the mean returns and all jobs."""
    player, evaluator = PoolPlayer(seed), Evaluator(seed)

    def played(iteration: int) -> None:
        if iteration % EVALUATE_EVERY == 0:
            evaluator.start(learner.policy, iteration)

    began = time.perf_counter()
    means = learn(learner, range(iterations), player, played)
    evaluated = {iteration: job.result() for iteration, job in evaluator.jobs.items()}
    took_s = time.perf_counter() - began
    for iteration, greedy in evaluated.items():
        print(
            f"  iteration {iteration:3d}   mean return {means[iteration]:6.1f}   "
            f"greedy {greedy:6.1f}"
        )
    final = evaluator.final(learner.policy)
    print(
        f"Mean return {means[0]:.1f} -> {means[-1]:.1f} in {iterations} iterations, "
        f"{took_s:.1f} s; the final greedy policy gets {final:.1f}."
    )
    return means, [*player.jobs, *evaluator.jobs.values()]


def print_starts(jobs: list[fp.Job]) -> None:
    """How the jobs got their workers, and the time to their first instruction, per source."""
    starts: dict[str, list[float]] = {}
    for info in (job.info() for job in jobs):
        # A job on a warm worker may first wait in line for it; that is no start latency.
        since = info.dispatched_at if info.source == "warm" else info.submitted_at
        starts.setdefault(info.source, []).append(1000 * (info.started_at - since))
    print(f"\n{'source':10}{'jobs':>6}{'p50 ms':>10}{'p90 ms':>10}{'p99 ms':>10}")
    for source in ("warm", "standby", "handover", "cold"):
        if source in starts:
            shown = "".join(f"{p:10.2f}" for p in np.percentile(starts[source], (50, 90, 99)))
            print(f"{source:10}{len(starts[source]):6}{shown}")


def print_comparison(trained: Learner, seed: int, iterations: range, width: int) -> None:
    """Go on for some iterations through the pool, and the same with a fresh actor per batch."""
    ways: dict[str, Play] = {
        "firepool": PoolPlayer(seed),
        "a fresh actor per batch": FreshActorPlayer(seed, width),
    }
    took_s, results = [], []
    print(f"\n{len(iterations)} more iterations ({len(iterations) * BATCHES} batches), both ways:")
    for name, play in ways.items():
        learner = copy.deepcopy(trained)
        began = time.perf_counter()
        results.append(learn(learner, iterations, play))
        took_s.append(time.perf_counter() - began)
        print(f"  {name:24}{took_s[-1]:8.2f} s")
    if results[0] != results[1]:
        raise AssertionError(f"the two ways learned different things: {results}")
    print(f"  the pool is {took_s[1] / took_s[0]:.1f} x as fast, with the same result")


@contextmanager
def pool() -> Iterator[int]:
    """Join the cluster of RAY_ADDRESS (Ray Jobs sets it) or start a small one; yield the lanes."""
    if "RAY_ADDRESS" in os.environ:
        ray.init(logging_level="WARNING")
    else:
        ray.init(
            address="local",
            num_cpus=4,
            num_gpus=2,
            include_dashboard=False,
            logging_level="WARNING",
        )
    try:
        fp.start(str(Path(__file__).with_name("pool.yaml")))
        yield 2
    finally:
        fp.shutdown()
        ray.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument(
        "--compare",
        type=int,
        default=2,
        metavar="ITERATIONS",
        help="iterations run both ways at the end (0: none)",
    )
    args = parser.parse_args()
    learner = Learner(args.seed)
    with pool() as lanes:
        means, jobs = train(learner, args.seed, args.iterations)
        print_starts(jobs)
        if args.compare:
            more = range(args.iterations, args.iterations + args.compare)
            print_comparison(learner, args.seed, more, lanes)
    learned = max(means[-3:]) > GOAL
    verdict = "Learned" if learned else "Did NOT learn"
    print(f"\n{verdict}: the goal is a mean return over {GOAL:.0f}.")
    return 0 if learned else 1


if __name__ == "__main__":
    sys.exit(main())
