"""How long starts, growth, promotions and messages take: seeded draws. Used by the engine.

A distribution is written as a number (constant), ``lognormal:MEDIAN,SIGMA``, ``uniform:LOW,HIGH``
or the name of a CSV file with the column ``cold_start_s``. All in seconds.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from firepool_ray.errors import TraceError, UsageError

COLUMN = "cold_start_s"
FORMS = "a number, lognormal:MEDIAN,SIGMA, uniform:LOW,HIGH, or a CSV file with " + COLUMN


class Distribution(Protocol):
    """Seconds that something takes."""

    @property
    def mean_s(self) -> float: ...

    def draw(self, chance: random.Random) -> float: ...


@dataclass(frozen=True, slots=True)
class Constant:
    seconds: float

    def __post_init__(self) -> None:
        _check("a constant", self.seconds)

    @property
    def mean_s(self) -> float:
        return self.seconds

    def draw(self, chance: random.Random) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Its logarithm is normal: ``median_s * exp(sigma * N(0, 1))``."""

    median_s: float
    sigma: float

    def __post_init__(self) -> None:
        _check("the median of a lognormal", self.median_s)
        _check("the sigma of a lognormal", self.sigma)
        if not self.median_s:
            raise UsageError("the median of a lognormal must be > 0")

    @property
    def mean_s(self) -> float:
        return self.median_s * math.exp(self.sigma**2 / 2)

    def draw(self, chance: random.Random) -> float:
        return chance.lognormvariate(math.log(self.median_s), self.sigma)


@dataclass(frozen=True, slots=True)
class Uniform:
    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        _check("the lower end of a uniform", self.low_s)
        _check("the upper end of a uniform", self.high_s)
        if self.low_s > self.high_s:
            raise UsageError(f"uniform: {self.low_s:g} is above {self.high_s:g}; swap them")

    @property
    def mean_s(self) -> float:
        return (self.low_s + self.high_s) / 2

    def draw(self, chance: random.Random) -> float:
        return chance.uniform(self.low_s, self.high_s)


class Empirical:
    """Draws one of the values that were measured, each as likely as the next."""

    __slots__ = ("_mean_s", "values_s")

    def __init__(self, values_s: Sequence[float]) -> None:
        if not values_s:
            raise UsageError("an empirical distribution needs at least one value")
        for value_s in values_s:
            _check("a measured value", value_s)
        self.values_s = tuple(values_s)
        self._mean_s = math.fsum(values_s) / len(values_s)

    @property
    def mean_s(self) -> float:
        return self._mean_s

    def draw(self, chance: random.Random) -> float:
        values_s = self.values_s
        return values_s[int(chance.random() * len(values_s))]

    @classmethod
    def read(cls, path: str | Path) -> Empirical:
        """From a CSV file with the column ``cold_start_s``. ``TraceError`` names the line."""
        values_s: list[float] = []
        try:
            with Path(path).open(newline="", encoding="utf-8-sig") as file:
                lines = csv.reader(file)
                header = [name.strip() for name in next(lines, [])]
                if COLUMN not in header:
                    raise TraceError(f"{path}, line 1: no column {COLUMN}")
                column = header.index(COLUMN)
                for row in lines:
                    if row:
                        values_s.append(_measured(path, lines.line_num, row, column))
        except OSError as error:
            raise TraceError(f"{path}: cannot read it: {error.strerror or error}") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise TraceError(f"{path}: not a CSV file in UTF-8: {error}") from None
        if not values_s:
            raise TraceError(f"{path}: no values below the header")
        return cls(values_s)


def _measured(path: str | Path, line: int, row: list[str], column: int) -> float:
    text = row[column] if column < len(row) else ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise TraceError(f"{path}, line {line}: {text!r} is not a number of seconds >= 0")
    return value


def _check(what: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise UsageError(f"{what} must be a finite number >= 0, not {value}")


def parse(text: str) -> Distribution:
    """A distribution from its text form; see the module's docstring. Raises ``UsageError``."""
    kind, colon, rest = text.strip().partition(":")
    if colon and kind in ("lognormal", "uniform"):
        parts = rest.split(",")
        try:
            first, second = map(float, parts)
        except ValueError:
            raise UsageError(f"{text!r}: {kind} takes two numbers, as {kind}:2,0.5") from None
        return LogNormal(first, second) if kind == "lognormal" else Uniform(first, second)
    try:
        seconds = float(text)
    except ValueError:
        if Path(text).is_file():
            return Empirical.read(text)
        raise UsageError(f"{text!r} is not a time and no file of that name: give {FORMS}") from None
    return Constant(seconds)


@dataclass(frozen=True, slots=True)
class Costs:
    """What each thing costs in seconds. Cold start and handover: see the defaults' reasons."""

    #: StartWorker to WorkerStarted. 22 s: the median load time of a base model on GPU pods.
    cold: Distribution = Constant(22.0)
    #: PromoteWorker to WorkerPromoted. 0.94 s: a published handover between two warm processes.
    promote: Distribution = Constant(0.94)
    #: GrowLane to LaneReady. 0: the cluster has the node already.
    grow: Distribution = Constant(0.0)
    #: RetireWorker to WorkerRetired. 0.05 s: kill, sweep and check.
    retire: Distribution = Constant(0.05)
    #: Each message between clients, controller, wardens and workers. 0: small beside all others.
    message: Distribution = Constant(0.0)


class Draws:
    """The costs of one run. Each kind has its own stream, so that one does not move another."""

    def __init__(self, costs: Costs, seed: int) -> None:
        self._costs = costs
        self._chances = {
            kind: random.Random(f"{seed} {kind}")
            for kind in ("cold", "promote", "grow", "retire", "message")
        }
        #: No message takes any time: they arrive in the order in which they were sent.
        self.instant = costs.message == Constant(0.0)

    def cold_s(self) -> float:
        return self._costs.cold.draw(self._chances["cold"])

    def promote_s(self) -> float:
        return self._costs.promote.draw(self._chances["promote"])

    def grow_s(self) -> float:
        return self._costs.grow.draw(self._chances["grow"])

    def retire_s(self) -> float:
        return self._costs.retire.draw(self._chances["retire"])

    def message_s(self) -> float:
        return self._costs.message.draw(self._chances["message"])
