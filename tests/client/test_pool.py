"""The public face on a real pool: what a user does, from a driver."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import pickle
import signal
import threading
import time
import weakref

import numpy as np
import pytest
import ray

import firepool_ray as fp
from firepool_ray.client import pool as pool_module
from firepool_ray.errors import (
    BadResult,
    JobCancelled,
    JobTimeout,
    NotPicklable,
    PoolClosed,
    QueueTimeout,
    RemoteError,
    UnknownName,
    UsageError,
    WorkerExit,
    WorkerLost,
)
from tests.conftest import KEPT

pytestmark = pytest.mark.usefixtures("pool")

WAIT_S = 60


def add(a, b=0):
    return a + b


def fail(error):
    raise error


def hold(path):
    """Runs until the file exists."""
    while not os.path.exists(path):
        time.sleep(0.005)
    return "held"


class Custom(Exception):
    def __init__(self, a, b):
        super().__init__(a)
        self.b = b


class Unloadable(Exception):
    def __reduce__(self):
        raise TypeError("no")


def fetch_all(jobs):
    return [job.result(WAIT_S) for job in jobs]


def engine():
    return pool_module._current._engine


# -- values and errors ----------------------------------------------------------------------------


def test_values_come_back_with_every_kind_of_function():
    factor = 3
    assert fp.submit(add, 1, b=2).result(WAIT_S) == 3
    assert fp.submit(lambda x: x * factor, 4).result(WAIT_S) == 12
    assert fp.submit(functools.partial(add, 5), 6).result(WAIT_S) == 11
    assert fp.submit(max, 3, 9).result(WAIT_S) == 9
    assert fp.submit(np.arange, 3).result(WAIT_S).tolist() == [0, 1, 2]


def test_arguments_are_captured_at_once(tmp_path):
    gate = tmp_path / "gate"
    blockers = [fp.submit(hold, str(gate)) for _ in range(8)]
    data = [1, 2]
    array = np.ones(10)
    big = np.ones(300_000)
    jobs = [fp.submit(sum, data), fp.submit(np.sum, array), fp.submit(np.sum, big)]
    data.append(100)
    array[:] = 7
    big[:] = 7
    gate.touch()
    fetch_all(blockers)
    assert fetch_all(jobs) == [3, 10, 300_000]


def test_a_changed_global_reaches_the_next_submit():
    space = {"LIMIT": 1}
    exec("def limited():\n    return LIMIT", space)
    space["limited"].__module__ = "__main__"
    assert fp.submit(space["limited"]).result(WAIT_S) == 1
    space["LIMIT"] = 2
    assert fp.submit(space["limited"]).result(WAIT_S) == 2


def test_big_values_are_read_from_shared_memory():
    job = fp.submit(np.zeros, 13_000_000)
    value = job.result(WAIT_S)
    assert value.shape == (13_000_000,) and not value.flags.owndata
    assert ray.get(job.ref).shape == value.shape


def test_the_users_own_exception_is_raised_with_the_workers_traceback():
    with pytest.raises(ValueError, match="mine") as raised:
        fp.submit(fail, ValueError("mine")).result(WAIT_S)
    assert "in fail" in str(raised.value.__cause__)
    job = fp.submit(fail, Custom("x", 5))
    error = job.exception(WAIT_S)
    assert type(error) is not Custom or error.b == 5
    with pytest.raises(ValueError):
        ray.get(fp.submit(fail, ValueError("mine")).ref)


def test_an_exception_that_cannot_travel_comes_as_text():
    def boom():
        class Local(Exception):
            def __reduce__(self):
                raise TypeError("no")

        raise Local("secret")

    with pytest.raises(RemoteError, match="secret") as raised:
        fp.submit(boom).result(WAIT_S)
    assert "Local" in raised.value.type_name


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (lambda: (x for x in "ab"), BadResult),
        (lambda: threading.Lock(), BadResult),
        (lambda: os.sys.exit(3), WorkerExit),
        (lambda: fail(KeyboardInterrupt()), WorkerExit),
    ],
)
def test_misbehaviour_is_a_clear_error_and_the_worker_stays(fn, error):
    before = fp.submit(os.getpid).result(WAIT_S)
    with pytest.raises(error):
        fp.submit(fn).result(WAIT_S)
    assert fp.submit(os.getpid).result(WAIT_S) == before


def test_a_dying_worker_loses_its_job_and_says_that_it_had_started():
    with pytest.raises(WorkerLost, match="had begun") as raised:
        fp.submit(os._exit, 1).result(WAIT_S)
    assert raised.value.started is True


def test_a_lost_job_is_retried_when_asked(tmp_path):
    marker = tmp_path / "ran"

    def once():
        if not marker.exists():
            marker.touch()
            os._exit(1)
        return "second"

    assert fp.options(max_retries=1).submit(once).result(WAIT_S) == "second"


# -- waiting --------------------------------------------------------------------------------------


def test_result_stops_waiting_and_the_job_goes_on(tmp_path):
    gate = tmp_path / "gate"
    job = fp.submit(hold, str(gate))
    with pytest.raises(TimeoutError, match="goes on"):
        job.result(timeout_s=0.05)
    assert not job.done()
    gate.touch()
    assert job.result(WAIT_S) == "held" and job.done()
    assert job.result() == "held"


def test_a_job_is_timed_out_on_its_worker():
    job = fp.options(timeout_s=0.2).submit(time.sleep, 60)
    with pytest.raises(JobTimeout):
        job.result(WAIT_S)
    assert job.info().outcome == "timeout"


def test_a_job_that_finds_no_worker_in_time_ends(tmp_path):
    gate = tmp_path / "gate"
    blockers = [fp.submit(hold, str(gate)) for _ in range(8)]
    job = fp.options(queue_timeout_s=0.2).submit(add, 1)
    with pytest.raises(QueueTimeout):
        job.result(WAIT_S)
    gate.touch()
    fetch_all(blockers)


def test_cancel_waiting_and_running(tmp_path):
    gate = tmp_path / "gate"
    jobs = [fp.submit(hold, str(gate)) for _ in range(10)]
    running = fp.submit(time.sleep, 60)
    assert running.cancel() and jobs[-1].cancel()
    for job in (running, jobs[-1]):
        with pytest.raises(JobCancelled):
            job.result(WAIT_S)
        assert not job.cancel()
    gate.touch()
    fetch_all(jobs[:-1])
    slow = fp.submit(time.sleep, 60)
    while slow.info().state != "running":
        time.sleep(0.01)
    slow.cancel()
    with pytest.raises(JobCancelled):
        slow.result(WAIT_S)


def test_as_completed_wait_and_map(tmp_path):
    gate = tmp_path / "gate"
    slow = fp.submit(hold, str(gate))
    quick = [fp.submit(add, n) for n in range(3)]
    ended = fp.as_completed([slow, *quick], timeout_s=WAIT_S)
    assert {next(ended) for _ in range(3)} == set(quick)
    first, rest = fp.wait([slow, *quick], num_returns=2, timeout_s=WAIT_S)
    assert first == quick[:2] and rest == [slow, quick[2]]
    first, rest = fp.wait([slow], timeout_s=0.05)
    assert (first, rest) == ([], [slow])
    with pytest.raises(TimeoutError, match="1 of 1"):
        list(fp.as_completed([slow], timeout_s=0.05))
    gate.touch()
    assert next(ended) is slow
    assert list(fp.map(add, range(50), range(50))) == [2 * n for n in range(50)]
    assert sorted(fp.map(add, range(50), ordered=False)) == list(range(50))
    with pytest.raises(ZeroDivisionError):
        list(fp.map(lambda n: 1 // n, [1, 0, 2]))
    values = fp.map(add, range(3))
    assert next(values) == 0
    values.close()


def test_await_in_several_loops_and_a_loop_that_closes(tmp_path):
    gate = tmp_path / "gate"

    async def gather():
        async def one(n):
            return await fp.submit(add, n, 1)

        return await asyncio.gather(*map(one, range(20)))

    results = []
    threads = [
        threading.Thread(target=lambda: results.append(asyncio.run(gather()))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [list(range(1, 21))] * 3

    job = fp.submit(hold, str(gate))

    async def give_up():
        await asyncio.wait_for(asyncio.shield(_awaiting(job)), 0.05)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(give_up())
    gate.touch()  # its callback finds the loop closed
    assert job.result(WAIT_S) == "held"

    async def error():
        await fp.submit(fail, KeyError("k"))

    with pytest.raises(KeyError):
        asyncio.run(error())


async def _awaiting(job):
    return await job


# -- references and jobs as arguments -------------------------------------------------------------


@ray.remote
def late(path, value):
    while not os.path.exists(path):
        time.sleep(0.005)
    return value


@ray.remote
def broken():
    raise LookupError("no such thing")


def test_references_are_resolved_and_nested_ones_stay(tmp_path):
    ready = ray.put(20)
    assert fp.submit(add, ready, b=ready).result(WAIT_S) == 40
    assert fp.submit(lambda refs: ray.get(refs[0]), [ready]).result(WAIT_S) == 20
    assert fp.submit(lambda: ray.get(ready) + 1).result(WAIT_S) == 21
    big = ray.put(np.ones(1_000_000))
    assert fp.submit(lambda array, refs: array.sum() + len(refs), big, [big]).result(WAIT_S) == (
        1_000_001
    )
    assert fp.submit(np.sum, big, dtype=None).result(WAIT_S) == 1_000_000


def test_a_job_waits_for_its_references_outside_of_the_queue(tmp_path):
    gate = tmp_path / "gate"
    job = fp.submit(add, late.remote(str(gate), 5), 1)
    assert job.info().state == "blocked"
    assert fp.submit(add, 1).result(WAIT_S) == 1  # nobody waits behind it
    gate.touch()
    assert job.result(WAIT_S) == 6
    info = job.info()
    assert info.submitted_at < info.ready_at <= info.dispatched_at


def test_a_failed_reference_is_the_jobs_error_and_the_lease_is_released():
    with pytest.raises(LookupError, match="no such thing"):
        fp.submit(add, broken.remote()).result(WAIT_S)
    assert fp.submit(add, 1).result(WAIT_S) == 1


def test_jobs_are_arguments_of_jobs(tmp_path):
    gate = tmp_path / "gate"
    first = fp.submit(hold, str(gate))
    second = fp.submit(add, first, "!")
    third = fp.submit(add, second, b=second)
    assert third.info().state == "blocked"
    gate.touch()
    assert third.result(WAIT_S) == "held!held!"
    bad = fp.submit(fail, ValueError("first"))
    with pytest.raises(ValueError, match="first"):
        fp.submit(add, fp.submit(add, bad)).result(WAIT_S)


def test_ref_exists_from_dispatch_on(tmp_path):
    gate = tmp_path / "gate"
    blockers = [fp.submit(hold, str(gate)) for _ in range(8)]
    queued, doomed = fp.submit(add, 4, 5), fp.submit(add, 1)
    doomed.cancel()
    with pytest.raises(JobCancelled):
        _ = doomed.ref
    threading.Timer(0.1, gate.touch).start()
    assert ray.get(queued.ref) == 9
    fetch_all(blockers)


def test_a_dispatched_job_pickles_as_a_view(tmp_path):
    gate = tmp_path / "gate"
    blockers = [fp.submit(hold, str(gate)) for _ in range(8)]
    with pytest.raises(NotPicklable, match="before it is dispatched"):
        fp.submit(add, [fp.submit(add, 1)])
    gate.touch()
    fetch_all(blockers)
    job = fp.submit(add, 4, 5)
    job.result(WAIT_S)
    assert fp.submit(lambda jobs: jobs[0].result(), [job]).result(WAIT_S) == 9
    view = pickle.loads(pickle.dumps(job))
    assert view.done() and view.result() == 9 and view.exception() is None
    assert fp.submit(add, view, 1).result(WAIT_S) == 10
    with pytest.raises(UsageError, match="another process"):
        view.cancel()
    error = fp.submit(fail, ValueError("v"))
    error.exception(WAIT_S)
    assert isinstance(pickle.loads(pickle.dumps(error)).exception(), ValueError)


# -- options --------------------------------------------------------------------------------------


def test_options_reach_the_job():
    other = fp.options(caller="someone", queue="rl", env={"SEED": "7"}, priority=2)
    job = other.submit(os.getenv, "SEED")
    assert job.result(WAIT_S) == "7"
    info = job.info()
    assert (info.caller, info.profile, info.name) == ("rl/someone", "cpu", "getenv")
    assert info.source in ("standby", "cold", "handover")
    assert info.start_s > 0 and info.run_s >= 0
    again = other.submit(os.getenv, "OTHER")
    assert again.result(WAIT_S) is None and again.info().source == "warm"


@pytest.mark.parametrize("kind", ["profile", "queue"])
def test_unknown_names_list_the_valid_ones(kind):
    with pytest.raises(UnknownName) as raised:
        fp.options(**{kind: "cpuu"}).submit(add, 1)
    assert raised.value.valid == (("cpu",) if kind == "profile" else ("default", "rl"))


def test_what_cannot_travel_is_named_and_nothing_is_left():
    lock = threading.Lock()
    before = engine().counts()
    with pytest.raises(NotPicklable, match="variable 'lock'"):
        fp.submit(lambda: lock)
    with pytest.raises(NotPicklable, match="item 1"):
        fp.submit(add, [1, lock])
    with pytest.raises(UsageError, match="needs a function"):
        fp.submit(42)
    assert engine().counts() == before


# -- many at once, and nothing left over ----------------------------------------------------------


def test_threads_share_one_client():
    def work(out):
        out.extend(job.result(WAIT_S) for job in [fp.submit(add, n) for n in range(50)])

    outs = [[] for _ in range(8)]
    threads = [threading.Thread(target=work, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outs == [list(range(50))] * 8


def test_a_dropped_job_runs_and_nothing_of_it_is_kept(tmp_path):
    marker = tmp_path / "ran"
    seen = weakref.ref(fp.submit(lambda: marker.write_text("x") and None))
    while not marker.exists():
        time.sleep(0.01)
    big = weakref.ref(fp.submit(add, np.ones(500_000), 1))
    deadline = time.monotonic() + WAIT_S
    while (seen() is not None or big() is not None) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert seen() is None and big() is None
    assert engine()._effects.jobs == {}


def test_interrupts_in_submit_lose_nothing():
    """KeyboardInterrupt at random points: no other job is lost, and no worker is stranded."""

    class Interrupt(Exception):
        pass

    def ring(*_):
        raise Interrupt

    old = signal.signal(signal.SIGALRM, ring)
    jobs, interrupted = [], 0
    try:
        for round_ in range(60):
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + (round_ % 30) * 0.00003)
            try:
                for n in range(1000):
                    jobs.append((n, fp.submit(add, n)))
                    if round_ % 3 == 0:
                        assert jobs[-1][1].result(WAIT_S) == n
            except Interrupt:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if round_ % 10 == 0:
                for n, job in jobs:
                    assert job.result(WAIT_S) == n
                jobs.clear()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert interrupted > 40
    for n, job in jobs:
        assert job.result(WAIT_S) == n
    deadline = time.monotonic() + WAIT_S
    while engine()._effects.jobs and time.monotonic() < deadline:
        time.sleep(0.05)
    assert engine()._effects.jobs == {}
    counts = engine().counts()
    assert counts["dispatched"] == counts["waiting"] == 0
    assert counts["free"] == counts["held"]


def test_a_signal_handler_may_submit():
    handled = []
    old = signal.signal(signal.SIGALRM, lambda *_: handled.append(fp.submit(add, 1)))
    try:
        for round_ in range(60):
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + round_ * 0.00002)
            jobs = [fp.submit(add, n) for n in range(30)]
            fetch_all(jobs)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert handled and fetch_all(handled) == [1] * len(handled)


def test_shutdown_ends_what_is_unfinished_and_start_begins_anew(tmp_path):
    gate = tmp_path / "gate"
    jobs = [fp.submit(hold, str(gate)) for _ in range(10)]
    fp.shutdown()
    fp.shutdown()
    for job in jobs:
        with pytest.raises(JobCancelled, match="shut down"):
            job.result(WAIT_S)
    with pytest.raises(PoolClosed, match="start"):
        fp.submit(add, 1)
    fp.start({"profiles": {"cpu": {**KEPT, "cpus": 0.5, "max_lanes": 2}}})
    assert fp.submit(add, 1).result(WAIT_S) == 1
