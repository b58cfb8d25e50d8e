"""Invented loads: agent loops, RL loops, Poisson arrivals, bursts of many callers. All seeded.

Called by the commands, the figures and tests. ``parse`` reads the text form
``NAME[:key=value,...]``; a value is a number, or ``LOW-HIGH`` where each caller draws its own.
Loops are closed: the next step follows on the end of the last one.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from firepool_ray.errors import UnknownName, UsageError
from firepool_ray.sim.traces import TraceJob
from firepool_ray.sim.workload import LoopSession, Session, Step, Workload


class Range(NamedTuple):
    low: float
    high: float

    def draw(self, chance: random.Random) -> float:
        return chance.uniform(self.low, self.high)


class Generator(Protocol):
    def workload(self, seed: int) -> Workload: ...


@dataclass(frozen=True, slots=True)
class _Kind:
    """What all generators share. ``gpus`` other than 1 give their profile a name of its own."""

    name: str = ""  #: begins the callers' names; "": the generator's
    queue: str = "default"
    gpus: float = 1.0

    @property
    def profile(self) -> str:
        return "gpu" if self.gpus == 1.0 else f"gpu{self.gpus:g}"


@dataclass(frozen=True, slots=True)
class Agents(_Kind):
    """Agents that think, call a tool, think again. Times are lognormal around medians."""

    callers: int = 50
    calls: int = 40  #: of each caller
    job_s: Range = Range(0.5, 5.0)  #: each caller's median
    job_sigma: float = 1.0
    pause_s: Range = Range(3.0, 12.0)  #: each caller's median
    pause_sigma: float = 1.0
    spread_s: float = 1800.0  #: sessions begin at random within this time

    def workload(self, seed: int) -> Workload:
        return Workload(sessions=lambda: self._sessions(seed), total=self.callers * self.calls)

    def _sessions(self, seed: int) -> Iterator[Session]:
        for number, begin_s in enumerate(_begins(self.callers, self.spread_s, f"{seed} agents")):
            name = f"{self.name or 'agent'}-{number}"
            chance = random.Random(f"{seed} {name}")
            yield LoopSession(
                name, begin_s, self._steps(chance), self.profile, self.queue, self.gpus
            )

    def _steps(self, chance: random.Random) -> Iterator[Step]:
        job, pause = math.log(self.job_s.draw(chance)), math.log(self.pause_s.draw(chance))
        for number in range(self.calls):
            pause_s = chance.lognormvariate(pause, self.pause_sigma) if number else 0.0
            yield Step(pause_s, (chance.lognormvariate(job, self.job_sigma),))


@dataclass(frozen=True, slots=True)
class RlLoops(_Kind):
    """Trainers: a burst of n rollouts at once, then an update, again and again.

    Each loop draws the length of its bursts and of its updates; each single one differs from that
    by up to ``jitter``. With several ``turns`` a burst is that many waves with short gaps between.
    """

    loops: int = 4
    n: int = 8  #: rollouts of a burst, submitted together
    bursts: int = 20  #: of each loop
    burst_s: Range = Range(20.0, 80.0)
    pause_s: Range = Range(30.0, 180.0)
    jitter: float = 0.1
    turns: int = 1
    turn_pause_s: float = 1.0
    spread_s: float = 120.0  #: loops begin at random within this time

    def workload(self, seed: int) -> Workload:
        total = self.loops * self.bursts * self.n * self.turns
        return Workload(sessions=lambda: self._sessions(seed), total=total)

    def _sessions(self, seed: int) -> Iterator[Session]:
        for number, begin_s in enumerate(_begins(self.loops, self.spread_s, f"{seed} rl")):
            name = f"{self.name or 'rl'}-{number}"
            chance = random.Random(f"{seed} {name}")
            yield LoopSession(
                name, begin_s, self._steps(chance), self.profile, self.queue, self.gpus
            )

    def _steps(self, chance: random.Random) -> Iterator[Step]:
        burst_s, pause_s = self.burst_s.draw(chance), self.pause_s.draw(chance)
        turn_s = max(0.0, burst_s - (self.turns - 1) * self.turn_pause_s) / self.turns

        def jittered(seconds: float) -> float:
            return seconds * chance.uniform(1 - self.jitter, 1 + self.jitter)

        for number in range(self.bursts):
            for turn in range(self.turns):
                gap_s = jittered(self.turn_pause_s if turn else pause_s) if number or turn else 0.0
                yield Step(gap_s, tuple(jittered(turn_s) for _ in range(self.n)))


@dataclass(frozen=True, slots=True)
class Poisson(_Kind):
    """Jobs that come at random, independent of each other; durations are exponential."""

    callers: int = 20
    jobs: int = 2000  #: of all callers together
    rate: float = 0.05  #: jobs per second of each caller
    job_s: Range = Range(2.0, 10.0)  #: each caller's mean

    def workload(self, seed: int) -> Workload:
        return Workload(jobs=lambda: self._jobs(seed), total=self.jobs)

    def _jobs(self, seed: int) -> Iterator[TraceJob]:
        chance = random.Random(f"{seed} {self.name or 'poisson'}")
        means_s = [self.job_s.draw(chance) for _ in range(self.callers)]
        at = 0.0
        for _ in range(self.jobs):
            at += chance.expovariate(self.rate * self.callers)
            number = chance.randrange(self.callers)
            duration_s = chance.expovariate(1.0) * means_s[number]
            name = f"{self.name or 'poisson'}-{number}"
            yield TraceJob(name, at, duration_s, self.profile, self.queue, self.gpus)


@dataclass(frozen=True, slots=True)
class Bursts(_Kind):
    """Many callers, each of which submits several jobs at once now and then."""

    callers: int = 30
    bursts: int = 5  #: of each caller
    size: int = 8  #: jobs of a burst
    every_s: Range = Range(60.0, 600.0)  #: each caller's mean time between bursts
    job_s: Range = Range(2.0, 20.0)  #: each caller's mean; durations are exponential

    def workload(self, seed: int) -> Workload:
        total = self.callers * self.bursts * self.size
        return Workload(jobs=lambda: self._jobs(seed), total=total)

    def _jobs(self, seed: int) -> Iterator[TraceJob]:
        streams = [self._caller(seed, number) for number in range(self.callers)]
        return heapq.merge(*streams, key=lambda job: job.start_s)

    def _caller(self, seed: int, number: int) -> Iterator[TraceJob]:
        name = f"{self.name or 'bursts'}-{number}"
        chance = random.Random(f"{seed} {name}")
        every_s, mean_s = self.every_s.draw(chance), self.job_s.draw(chance)
        at = 0.0
        for _ in range(self.bursts):
            at += chance.expovariate(1.0) * every_s
            for _ in range(self.size):
                duration_s = chance.expovariate(1.0) * mean_s
                yield TraceJob(name, at, duration_s, self.profile, self.queue, self.gpus)


def _begins(count: int, spread_s: float, seed: str) -> list[float]:
    chance = random.Random(seed)
    return sorted(chance.uniform(0.0, spread_s) for _ in range(count))


GENERATORS: dict[str, Callable[..., Generator]] = {
    "agents": Agents,
    "rl": RlLoops,
    "poisson": Poisson,
    "bursts": Bursts,
}


def parse(text: str) -> Generator:
    """``rl:loops=2,burst_s=20-80`` and the like. Raises ``UsageError`` that says what is valid."""
    name, _, rest = text.strip().partition(":")
    kind: Any = GENERATORS.get(name)
    if kind is None:
        raise UnknownName("generator", name, GENERATORS)
    fields = {field.name: field.default for field in dataclasses.fields(kind)}
    given: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = (item.strip() for item in part.partition("="))
        if key not in fields:
            raise UnknownName(f"setting of the generator {name!r}:", key, fields)
        if not equals:
            raise UsageError(f"{text!r}: write {key}=VALUE")
        given[key] = _value(key, value, fields[key])
    return kind(**given)  # type: ignore[no-any-return]


def _value(key: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, str):
            return text
        if isinstance(default, Range):
            low, dash, high = text.partition("-")
            value: Any = Range(float(low), float(high if dash else low))
            fine = 0 < value.low <= value.high < math.inf
        elif isinstance(default, int):
            value = int(text)
            fine = value >= 1
        else:
            value = float(text)
            fine = 0 <= value < math.inf
    except ValueError:
        fine = False
    if not fine:
        form = "LOW-HIGH or a number > 0" if isinstance(default, Range) else "a number > 0"
        raise UsageError(f"{key}={text}: this takes {form}, such as {_shown(default)}")
    return value


def _shown(default: Any) -> str:
    if isinstance(default, Range):
        return f"{default.low:g}-{default.high:g}"
    return f"{default:g}"
