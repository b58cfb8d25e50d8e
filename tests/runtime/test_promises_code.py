"""Failure promises, seen by the submitter: what user code and its arguments can do to a job.

Every test ends with the same worker alive, unless killing it is the promise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import firepool_ray as fp
from firepool_ray.errors import (
    BadArgument,
    BadResult,
    JobCancelled,
    JobTimeout,
    QueueTimeout,
    RemoteError,
    WorkerExit,
)
from tests import jobs
from tests.conftest import KEPT, PATIENCE_S, eventually, is_gone, pool_of

SETTINGS = {
    "profiles": {"cpu": {**KEPT, "cpus": 0.5, "max_lanes": 1}},
    "window_s": 0.5,
}


@pytest.fixture(scope="module", autouse=True)
def pool() -> Iterator[Any]:
    with pool_of(SETTINGS, num_cpus=2, num_gpus=0) as controller:
        yield controller


@pytest.fixture
def warm() -> Iterator[int]:
    """The pid of the one worker; it must serve the next job, too."""
    before = fp.submit(jobs.pid).result(timeout_s=PATIENCE_S)
    yield before
    job = fp.submit(jobs.pid)
    assert job.result(timeout_s=PATIENCE_S) == before
    assert job.info().source == "warm"


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def error_of(job: fp.Job) -> BaseException:
    error = job.exception(timeout_s=PATIENCE_S)
    assert error is not None
    return error


# ---------------------------------------------------------------- user code raises


def test_an_exception_arrives_as_it_is(warm: int) -> None:
    job = fp.submit(jobs.raise_error, KeyError("no such key", 7))
    with pytest.raises(KeyError) as caught:
        job.result(timeout_s=PATIENCE_S)
    assert caught.value.args == ("no such key", 7)
    assert "raise_error" in str(caught.value.__cause__), "no traceback of the worker"
    with pytest.raises(KeyError):
        ray.get(job.ref)


@pytest.mark.parametrize(
    ("fn", "name", "text"),
    [
        (jobs.raise_awkward, "Awkward", "one"),
        (jobs.raise_unpicklable, "Unpicklable", "holds a lock"),
    ],
)
def test_an_exception_that_cannot_travel_arrives_as_text(
    warm: int, fn: Any, name: str, text: str
) -> None:
    error = error_of(fp.submit(fn))
    assert isinstance(error, RemoteError)
    assert error.type_name.endswith(name)
    assert text in error.message
    assert fn.__name__ in error.traceback_text


# ---------------------------------------------------------------- user code wants to leave


@pytest.mark.parametrize("code", [0, 3, "a message"])
def test_sys_exit_is_a_clear_error(warm: int, code: Any) -> None:
    error = error_of(fp.submit(jobs.exit_with, code))
    assert isinstance(error, WorkerExit)
    assert f"sys.exit({code!r})" in str(error)


def test_keyboard_interrupt_is_a_clear_error(warm: int) -> None:
    error = error_of(fp.submit(jobs.raise_error, KeyboardInterrupt()))
    assert isinstance(error, WorkerExit)
    assert "KeyboardInterrupt" in str(error)


@pytest.mark.parametrize("fn", [jobs.generate, jobs.coroutine, jobs.lock])
def test_a_result_that_cannot_travel_is_a_clear_error(warm: int, fn: Any) -> None:
    job = fp.submit(fn)
    assert isinstance(error_of(job), BadResult)
    with pytest.raises(BadResult):
        ray.get(job.ref)


# ---------------------------------------------------------------- stopping


def test_a_timeout_stops_the_job_and_its_children_and_spares_the_worker(
    warm: int, tmp_path: Path
) -> None:
    children = tmp_path / "children"
    job = fp.options(timeout_s=0.5).submit(jobs.start_session_and_sleep, str(children), 600)
    assert isinstance(error_of(job), JobTimeout)
    assert job.info().outcome == "timeout"
    eventually(lambda: is_gone(int(lines(children)[0])))


def test_a_cancel_stops_the_job_and_its_children_and_spares_the_worker(
    warm: int, tmp_path: Path
) -> None:
    children = tmp_path / "children"
    job = fp.submit(jobs.start_session_and_sleep, str(children), 600)
    eventually(lambda: lines(children))
    assert job.cancel()
    assert isinstance(error_of(job), JobCancelled)
    assert not job.cancel()
    eventually(lambda: is_gone(int(lines(children)[0])))


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_job_that_does_not_let_go_is_killed_with_its_tree(tmp_path: Path, how: str) -> None:
    children, started = tmp_path / "children", tmp_path / "started"
    fp.submit(jobs.start_session, str(children)).result(timeout_s=PATIENCE_S)
    options: dict[str, Any] = {"timeout_s": 0.5} if how == "timeout" else {}
    job = fp.options(**options).submit(jobs.mark_and_hang, str(started))
    eventually(lambda: lines(started))
    if how == "cancel":
        assert job.cancel()
    assert isinstance(error_of(job), JobTimeout if how == "timeout" else JobCancelled)
    worker, child = int(lines(started)[0]), int(lines(children)[0])
    eventually(lambda: is_gone(worker))
    eventually(lambda: is_gone(child))
    assert fp.submit(jobs.pid).result(timeout_s=PATIENCE_S) != worker


def test_a_waiting_job_is_cancelled_at_once_and_never_runs(warm: int, tmp_path: Path) -> None:
    started, never = tmp_path / "started", tmp_path / "never"
    running = fp.submit(jobs.mark_and_sleep, str(started), 0.5)
    waiting = fp.submit(jobs.mark, str(never))
    assert waiting.cancel()
    assert isinstance(error_of(waiting), JobCancelled)
    running.result(timeout_s=PATIENCE_S)
    assert not never.exists()


def test_alarms_and_handlers_of_a_job_end_with_it(warm: int) -> None:
    for _ in range(3):
        assert fp.submit(jobs.leave_alarms).result(timeout_s=PATIENCE_S) == warm
        assert fp.submit(jobs.signal_state).result(timeout_s=PATIENCE_S) == (0.0, 0.0, False)


def test_queue_timeout_ends_what_has_not_started(warm: int, tmp_path: Path) -> None:
    started, never = tmp_path / "started", tmp_path / "never"
    running = fp.submit(jobs.mark_and_sleep, str(started), 2.0)
    late = fp.options(queue_timeout_s=0.2).submit(jobs.mark, str(never))
    assert isinstance(error_of(late), QueueTimeout)
    assert not running.done()
    running.result(timeout_s=PATIENCE_S)
    assert not never.exists()


def test_a_timeout_of_result_only_stops_waiting(warm: int, tmp_path: Path) -> None:
    job = fp.submit(jobs.mark_and_sleep, str(tmp_path / "started"), 1.0)
    with pytest.raises(TimeoutError):
        job.result(timeout_s=0.05)
    assert job.result(timeout_s=PATIENCE_S) == warm


# ---------------------------------------------------------------- arguments


def test_an_argument_that_does_not_load_is_that_error(warm: int) -> None:
    error = error_of(fp.submit(jobs.accept, jobs.RefusesToLoad()))
    assert isinstance(error, BadArgument)
    assert "this argument does not load" in str(error)


@ray.remote(num_cpus=0, max_retries=0)
def _fails_later(seconds: float) -> None:
    time.sleep(seconds)
    raise LookupError("the reference failed")


@ray.remote(num_cpus=0)
class Owner:
    def own(self) -> list[ray.ObjectRef]:
        return [_fails_later.remote(600)]


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_failed_reference_is_that_error_and_the_lease_is_released(seconds: float) -> None:
    ref = _fails_later.remote(seconds)
    if not seconds:
        ray.wait([ref])
    error = error_of(fp.submit(jobs.accept, ref))
    assert isinstance(error, LookupError), error
    assert "the reference failed" in str(error)
    other = fp.options(caller=f"other{seconds:g}").submit(jobs.pid)
    assert other.result(timeout_s=PATIENCE_S) > 0, "the lane was not handed over"


def test_a_lost_reference_is_that_error_and_the_lease_is_released(warm: int) -> None:
    owner = Owner.remote()
    (ref,) = ray.get(owner.own.remote())
    job = fp.submit(jobs.accept, ref)
    assert fp.submit(jobs.pid).result(timeout_s=PATIENCE_S) == warm, "it waits on the worker"
    ray.kill(owner)
    error = error_of(job)
    assert isinstance(error, ray.exceptions.OwnerDiedError), repr(error)
