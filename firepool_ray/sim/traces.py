"""Reads recorded jobs from CSV files, one row at a time. Called by ``workload`` and the commands.

A file has a header and the columns ``caller,start_s,duration_s``; ``profile``, ``queue`` and
``gpus`` may follow in any order, further columns are ignored (but may select rows, see ``read``).
Rows are sorted by ``start_s``, so that a file of any length is read in constant memory. Where every
session begins at 0 (``spread_s``) they need not be: such a file is loaded and sorted here.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

from firepool_ray.config import check_name
from firepool_ray.errors import ConfigError, TraceError

REQUIRED = ("caller", "start_s", "duration_s")
OPTIONAL = ("profile", "queue", "gpus")
DEFAULT_PROFILE = "gpu"
DEFAULT_QUEUE = "default"


class TraceJob(NamedTuple):
    """One job of a trace. Times in seconds; ``gpus`` are those of one worker of its profile."""

    caller: str
    start_s: float
    duration_s: float
    profile: str = DEFAULT_PROFILE
    queue: str = DEFAULT_QUEUE
    gpus: float = 1.0


def read(
    path: str | Path,
    *,
    where: Mapping[str, str] | None = None,
    spread_s: float | None = None,
    seed: int = 0,
    sort: bool = False,
) -> Iterator[TraceJob]:
    """The jobs of a CSV file in the order of their starts.

    ``where`` keeps rows whose columns have these values. With ``spread_s`` each caller's rows are
    moved by one random time in ``[0, spread_s)``, drawn from ``seed`` in the order in which callers
    first appear. ``sort`` loads the file and sorts it. Raises ``TraceError`` that names the line.
    """
    jobs = _rows(Path(path), where or {}, ordered=spread_s is None and not sort)
    if spread_s is None:
        return iter(sorted(jobs, key=_start)) if sort else jobs
    return _spread(jobs, spread_s, seed)


def _start(job: TraceJob) -> float:
    return job.start_s


def _spread(jobs: Iterator[TraceJob], spread_s: float, seed: int) -> Iterator[TraceJob]:
    """Sessions that all begin at 0 begin at random times instead."""
    if not 0 <= spread_s < math.inf:
        raise TraceError(f"sessions cannot be spread over {spread_s} s: give seconds >= 0")
    chance = random.Random(seed)
    offsets: dict[tuple[str, str], float] = {}
    moved = []
    for job in jobs:
        who = (job.queue, job.caller)
        if who not in offsets:
            offsets[who] = chance.uniform(0.0, spread_s)
        moved.append(job._replace(start_s=job.start_s + offsets[who]))
    moved.sort(key=_start)
    return iter(moved)


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    try:
        file = path.open(newline="", encoding="utf-8-sig")
    except OSError as error:
        raise TraceError(f"{path}: cannot read the trace: {error.strerror or error}") from None
    with file:
        yield file


def _rows(path: Path, where: Mapping[str, str], *, ordered: bool) -> Iterator[TraceJob]:
    with _opened(path) as file:
        lines = csv.reader(file)
        try:
            header = [name.strip() for name in next(lines)]
        except StopIteration:
            raise TraceError(f"{path}: the file is empty. {_format()}") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise TraceError(f"{path}: not a CSV file in UTF-8: {error}") from None
        reader = _Reader(path, header, where)
        last_s = -math.inf
        try:
            for row in lines:
                if not row:
                    continue
                job = reader.job(row, lines.line_num)
                if job is None:
                    continue
                if ordered and job.start_s < last_s:
                    raise TraceError(
                        f"{path}, line {lines.line_num}: start_s {job.start_s:g} is before the row "
                        f"above it ({last_s:g}). Sort the file by start_s; or, if every caller's "
                        "session begins at 0, spread them over a time (--spread SECONDS)."
                    )
                last_s = job.start_s
                yield job
        except (UnicodeDecodeError, csv.Error) as error:
            raise TraceError(f"{path}, line {lines.line_num}: {error}") from None


class _Reader:
    """Turns rows into jobs, by the columns of one header."""

    def __init__(self, path: Path, header: list[str], where: Mapping[str, str]) -> None:
        self._path = path
        self._width = len(header)
        missing = [name for name in REQUIRED if name not in header]
        if missing:
            raise TraceError(f"{path}, line 1: no column {', '.join(missing)}. {_format()}")
        double = sorted({name for name in header if header.count(name) > 1})
        if double:
            raise TraceError(f"{path}, line 1: the column {double[0]!r} is there twice")
        self._caller, self._start, self._duration = map(header.index, REQUIRED)
        self._profile, self._queue, self._gpus = (
            header.index(name) if name in header else -1 for name in OPTIONAL
        )
        unknown = [name for name in where if name not in header]
        if unknown:
            raise TraceError(
                f"{path}: cannot select rows by {unknown[0]!r}: the columns are {', '.join(header)}"
            )
        self._where = [(header.index(name), value) for name, value in where.items()]
        self._names: dict[str, dict[str, str]] = {"profile": {}, "queue": {}}

    def job(self, row: list[str], line: int) -> TraceJob | None:
        """The job of a row; None for one that is not selected."""
        if len(row) != self._width:
            self._fail(line, f"{len(row)} values, but the header has {self._width} columns")
        if any(row[column].strip() != value for column, value in self._where):
            return None
        caller = row[self._caller].strip()
        if not caller:
            self._fail(line, "the caller is empty")
        start_s = self._number(row[self._start], "start_s", line)
        duration_s = self._number(row[self._duration], "duration_s", line)
        if duration_s < 0:
            self._fail(line, f"duration_s is {duration_s:g}: it must be >= 0")
        gpus = self._number(row[self._gpus], "gpus", line) if self._gpus >= 0 else 1.0
        if gpus < 0:
            self._fail(line, f"gpus is {gpus:g}: it must be >= 0")
        if self._profile >= 0:
            profile = self._name("profile", row[self._profile], line)
        else:
            profile = DEFAULT_PROFILE if gpus == 1.0 else f"{DEFAULT_PROFILE}{gpus:g}"
        queue = self._name("queue", row[self._queue], line) if self._queue >= 0 else DEFAULT_QUEUE
        return TraceJob(caller, start_s, duration_s, profile, queue, gpus)

    def _number(self, text: str, column: str, line: int) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self._fail(line, f"{column} is {text!r}: it must be a number of seconds or GPUs")
        return value

    def _name(self, kind: str, text: str, line: int) -> str:
        known = self._names[kind]
        name = known.get(text)
        if name is None:
            try:
                name = known[text] = check_name(kind, text.strip())
            except ConfigError as error:
                self._fail(line, str(error))
        return name

    def _fail(self, line: int, what: str) -> NoReturn:
        raise TraceError(f"{self._path}, line {line}: {what}")


def _format() -> str:
    return (
        f"A trace is a CSV file whose header has {','.join(REQUIRED)} "
        f"and perhaps {','.join(OPTIONAL)}."
    )


@dataclass(slots=True)
class Outline:
    """What one pass over a trace tells: memory grows with callers and profiles, not with jobs."""

    jobs: int = 0
    begin_s: float = math.inf
    end_s: float = -math.inf
    busy_gpu_s: float = 0.0
    profiles: dict[str, float] = field(default_factory=dict)  #: GPUs of one worker, by name
    queues: dict[str, None] = field(default_factory=dict)
    callers: dict[tuple[str, str], int] = field(default_factory=dict)  #: jobs by (queue, caller)


def outline(jobs: Iterator[TraceJob]) -> Outline:
    """Read a trace once. Raises ``TraceError`` if one profile's rows differ in GPUs."""
    seen = Outline()
    for job in jobs:
        seen.jobs += 1
        seen.begin_s = min(seen.begin_s, job.start_s)
        seen.end_s = max(seen.end_s, job.start_s + job.duration_s)
        seen.busy_gpu_s += job.duration_s * (job.gpus or 1.0)
        gpus = seen.profiles.setdefault(job.profile, job.gpus)
        if gpus != job.gpus:
            raise TraceError(
                f"jobs of profile {job.profile!r} have {gpus:g} and {job.gpus:g} GPUs: all workers "
                "of a profile are alike, so give them profiles of different names"
            )
        seen.queues[job.queue] = None
        who = (job.queue, job.caller)
        seen.callers[who] = seen.callers.get(who, 0) + 1
    return seen
