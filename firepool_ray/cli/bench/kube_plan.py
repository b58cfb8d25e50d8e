"""What the loops of ``firepool bench --kube`` do, decided beforehand. Pure.

Both arms, the pool and a fresh pod per job, get the very same jobs and pauses. The ideal is what a
loop would take if every start were free: nothing can be faster, so it is the ceiling of any ratio.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

SEED = 7


class Step(NamedTuple):
    """One job and the pause after it. Seconds."""

    job_s: float
    pause_s: float


@dataclass(frozen=True)
class Agents:
    """So many agents side by side; each goes through its steps, one after the other."""

    steps: Sequence[Sequence[Step]]

    @property
    def ideal_s(self) -> float:
        """Mean length of an agent's loop with free starts."""
        return sum(sum(job + pause for job, pause in own) for own in self.steps) / len(self.steps)


@dataclass(frozen=True)
class Rollouts:
    """Bursts of jobs that are all waited for, with an update of the model after each."""

    bursts: Sequence[Sequence[float]]  #: lengths of the jobs of each burst
    update_s: float

    @property
    def ideal_s(self) -> float:
        """With a lane for each job of a burst, and free starts."""
        return sum(max(burst) + self.update_s for burst in self.bursts)


def agents(count: int = 16, jobs: int = 5, seed: int = SEED) -> Agents:
    """Jobs of 0.2-1 s, pauses of 0.5-3 s."""
    draw = random.Random(seed)
    return Agents(
        [
            [Step(draw.uniform(0.2, 1.0), draw.uniform(0.5, 3.0)) for _ in range(jobs)]
            for _ in range(count)
        ]
    )


def rollouts(bursts: int = 4, jobs: int = 16, update_s: float = 2.0, seed: int = SEED) -> Rollouts:
    """Jobs of 0.2-1 s."""
    draw = random.Random(seed)
    return Rollouts(
        [[draw.uniform(0.2, 1.0) for _ in range(jobs)] for _ in range(bursts)], update_s
    )


class Ran(NamedTuple):
    """How a loop went on one of the two."""

    loop_s: float  #: mean over agents; of the whole for rollouts
    starts_s: list[float]  #: asked for, to the first instruction of the job; per job
    sources: dict[str, int]  #: how the jobs were started; empty for fresh pods
