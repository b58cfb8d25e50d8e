"""Many jobs at once: ``map``, ``as_completed`` and ``wait``."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from firepool_ray.client.job import Job
from firepool_ray.errors import UsageError

#: ``map`` keeps at most this many jobs unfinished, so that any iterable may be infinite.
MAP_AHEAD = 20_000


def map_jobs(
    submit: Callable[..., Job],
    fn: Callable[..., Any],
    iterables: tuple[Iterable[Any], ...],
    ordered: bool,
) -> Iterator[Any]:
    """Submit all that fits now, the rest as values are taken."""
    items = zip(*iterables, strict=False)
    ahead: deque[Job] = deque()

    def refill() -> None:
        while len(ahead) < MAP_AHEAD:
            try:
                item = next(items)
            except StopIteration:
                return
            ahead.append(submit(fn, *item))

    try:
        refill()
    except BaseException:
        _cancel(ahead)
        raise
    return _in_order(ahead, refill) if ordered else _as_they_come(ahead, refill)


def _in_order(ahead: deque[Job], refill: Callable[[], None]) -> Iterator[Any]:
    try:
        while ahead:
            value = ahead[0].result()
            ahead.popleft()
            refill()
            yield value
    finally:
        _cancel(ahead)


def _as_they_come(ahead: deque[Job], refill: Callable[[], None]) -> Iterator[Any]:
    ended: queue.SimpleQueue[Job] = queue.SimpleQueue()
    running: set[Job] = set()

    def follow() -> None:
        while ahead:
            job = ahead.popleft()
            running.add(job)
            job._add_callback(_putter(ended, job))

    try:
        follow()
        while running:
            job = _next_ended(ended, running, None)
            running.discard(job)
            value = job.result()
            if len(running) < MAP_AHEAD // 2:
                refill()
                follow()
            yield value
    finally:
        _cancel(running)


def _cancel(jobs: Iterable[Job]) -> None:
    for job in list(jobs):
        job.cancel()


def _putter(ended: queue.SimpleQueue[Job], job: Job) -> Callable[[], None]:
    return lambda: ended.put(job)


def _next_ended(ended: queue.SimpleQueue[Job], jobs: Iterable[Job], timeout_s: float | None) -> Job:
    """The next job that ends; inside a job of the pool the controller hears of the waiting."""
    try:
        return ended.get_nowait()
    except queue.Empty:
        engine = next((job._engine for job in jobs if job._engine is not None), None)
        leave = engine.enter_wait() if engine is not None else None
        try:
            return ended.get(timeout=timeout_s)
        finally:
            if leave is not None:
                leave()


def as_completed(jobs: Iterable[Job], timeout_s: float | None = None) -> Iterator[Job]:
    """The jobs, each as it ends. Raises ``TimeoutError`` after ``timeout_s`` in all."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    ended: queue.SimpleQueue[Job] = queue.SimpleQueue()
    running = _distinct(jobs)
    callbacks = {job: _putter(ended, job) for job in running}
    for job, callback in callbacks.items():
        job._add_callback(callback)
    try:
        while callbacks:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                job = _next_ended(ended, callbacks, left_s)
            except queue.Empty:
                raise TimeoutError(
                    f"{len(callbacks)} of {len(running)} jobs have not ended within {timeout_s} s"
                ) from None
            del callbacks[job]
            yield job
    finally:
        for job, callback in callbacks.items():
            job._remove_callback(callback)


def wait(
    jobs: Iterable[Job], num_returns: int = 1, timeout_s: float | None = None
) -> tuple[list[Job], list[Job]]:
    """Wait until ``num_returns`` jobs have ended or the time is over: (ended, others).

    At most ``num_returns`` are in the first list; both keep the order of ``jobs``.
    """
    listed = _distinct(jobs)
    if not 0 < num_returns <= len(listed):
        raise UsageError(f"num_returns={num_returns} must be 1 to {len(listed)}, one per job")
    ended = {job for job in listed if job.done()}
    if len(ended) < num_returns:
        others = [job for job in listed if job not in ended]
        try:
            for job in as_completed(others, timeout_s):
                ended.add(job)
                if len(ended) >= num_returns:
                    break
        except TimeoutError:
            pass
    first = [job for job in listed if job in ended][:num_returns]
    chosen = set(first)
    return first, [job for job in listed if job not in chosen]


def _distinct(jobs: Iterable[Job]) -> list[Job]:
    listed = list(jobs)
    for job in listed:
        if not isinstance(job, Job):
            raise UsageError(f"only jobs can be waited for, not {type(job).__name__}")
    if len(set(listed)) != len(listed):
        raise UsageError("the jobs to wait for must be distinct")
    return listed
