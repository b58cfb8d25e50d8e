"""One worker: what its jobs end as, and that it stays sound whatever they do."""

from __future__ import annotations

import collections
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray

from firepool_ray.binding.payload import RefSlot, dumps
from firepool_ray.core.model import Fence
from firepool_ray.errors import DeviceBusy, JobCancelled, StaleEpoch
from firepool_ray.runtime import context, protocol


def echo(*args: Any, **kwargs: Any) -> Any:
    return (args, kwargs) if kwargs or len(args) != 1 else args[0]


def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


def on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


# ---------------------------------------------------------------- values and arguments


def test_small_values_come_with_the_header_and_by_their_ref(worker: Any) -> None:
    done = worker.submit(echo, 1, 2, three=3)
    assert done.header().value is not None
    assert done.value() == ray.get(done.ref) == ((1, 2), {"three": 3})
    assert done.header().lease_state == "idle"


def test_user_code_runs_on_the_main_thread(worker: Any) -> None:
    assert worker.submit(on_main_thread).value() is True


def test_big_arrays_come_by_their_ref_only(worker: Any) -> None:
    done = worker.submit(lambda: np.arange(10**6))
    assert done.header().value is None
    assert (ray.get(done.ref) == np.arange(10**6)).all()


def test_refs_in_values_and_arguments_stay_refs(worker: Any, call: Callable[..., Any]) -> None:
    inner, top = ray.put("inner"), ray.put("top")
    made = call(echo)
    packed = dumps(((RefSlot(0), [inner]), {}), ray.ObjectRef).data
    done = worker.run(made._replace(args=packed), top, [inner], nested=True)
    args, _ = ray.get(done.ref)
    assert args[0] == "top" and ray.get(args[1][0]) == "inner"
    assert done.header().value is None


def test_big_arguments_come_by_a_ref(worker: Any, call: Callable[..., Any]) -> None:
    inner = ray.put("inner")
    packed = dumps(((np.ones(10**6), RefSlot(0), [inner]), {}), ray.ObjectRef)
    big = ray.put((packed.data, packed.buffers, packed.refs))
    made = call(lambda array, top, refs: (array.sum(), top, ray.get(refs[0])))
    done = worker.run(made._replace(args=None), big, ray.put("top"))
    assert done.value() == (10**6, "top", "inner")


def test_a_failed_argument_fails_the_header(worker: Any, call: Callable[..., Any]) -> None:
    @ray.remote(num_cpus=0)
    def broken() -> None:
        raise LookupError("no argument")

    done = worker.run(call(echo), broken.remote())
    with pytest.raises(LookupError, match="no argument"):
        done.header()
    assert worker.submit(echo, 1).value() == 1


def test_a_function_is_sent_once(worker: Any, call: Callable[..., Any]) -> None:
    def once() -> str:
        return "here"

    unknown = worker.run(call(once, send_fn=False)).header()
    assert (unknown.outcome, unknown.lease_state, unknown.started_at) == ("need_code", "idle", 0)
    assert worker.run(call(once)).value() == "here"
    assert worker.run(call(once, send_fn=False)).value() == "here"


# ---------------------------------------------------------------- failures


class Odd(Exception):
    """Cannot be rebuilt from its args."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("odd")


def test_errors_of_user_code(worker: Any) -> None:
    def fail(error: Any) -> None:
        raise error[0](*error[1])

    done = worker.submit(fail, (KeyError, ("k",)))
    failure = done.header().error
    assert done.outcome() == "error" and failure is not None
    assert failure.type_name == "KeyError" and failure.pickled is not None
    assert "firepool_ray" not in failure.traceback_text and "in fail" in failure.traceback_text
    with pytest.raises(KeyError):
        ray.get(done.ref)

    done = worker.submit(fail, (Odd, (1, 2)))
    failure = done.header().error
    assert failure is not None and failure.pickled is None and failure.message == "odd"
    with pytest.raises(Exception, match="odd"):
        ray.get(done.ref)


def generator() -> Any:
    yield 1


def interrupt() -> None:
    raise KeyboardInterrupt


async def coroutine() -> int:
    return 1


@pytest.mark.parametrize(
    ("fn", "outcome", "message"),
    [
        (lambda: sys.exit(3), "exit", r"called sys.exit\(3\)"),
        (interrupt, "exit", "KeyboardInterrupt"),
        (generator, "bad_result", "generator"),
        (coroutine, "bad_result", "asyncio.run"),
        (lambda: threading.Lock(), "bad_result", "_thread.lock"),
    ],
)
def test_what_cannot_be_a_result(worker: Any, fn: Any, outcome: str, message: str) -> None:
    done = worker.submit(fn)
    failure = done.header().error
    assert done.outcome() == outcome and failure is not None
    assert re.search(message, failure.message)
    assert worker.submit(echo, 1).value() == 1


class Poison:
    def __reduce__(self) -> Any:
        return (int, ("not a number",))


def test_arguments_that_cannot_be_loaded(worker: Any) -> None:
    done = worker.submit(echo, Poison())
    failure = done.header().error
    assert done.outcome() == "bad_argument" and failure is not None
    assert "invalid literal" in failure.message
    assert (done.header().started_at, done.header().lease_state) == (0.0, "idle")


def test_a_forked_child_that_returns_is_no_second_worker(worker: Any) -> None:
    def fork() -> tuple[int, int]:
        child = os.fork()
        if child == 0:
            return (0, 0)
        return (child, os.waitpid(child, 0)[1])

    child, status = worker.submit(fork).value()
    assert child > 0 and status == 0
    assert worker.submit(echo, 1).value() == 1


# ---------------------------------------------------------------- leases


def test_only_the_current_lease_runs(worker: Any) -> None:
    fence, worker.fence = worker.fence, Fence(worker.fence.epoch, worker.fence.number + 1000)
    refused = worker.submit(echo, 1).header()
    assert (refused.outcome, refused.lease_state, refused.started_at) == ("refused", "gone", 0)
    worker.fence = fence
    assert worker.submit(echo, 1).value() == 1


def test_a_standby_is_blind_and_a_promoted_worker_sees(node: Any) -> None:
    def sight() -> tuple[Any, ...]:
        names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "FIREPOOL_LANE", "FP_PROFILE")
        return tuple(os.environ.get(name) for name in names)

    worker = node.start_worker(promote=False, env={"FP_PROFILE": "1"}, preload=("colorsys",))
    with open(f"/proc/{worker.pid}/environ", "rb") as file:
        assert b"CUDA_VISIBLE_DEVICES=0" not in file.read().split(b"\0")
    assert worker.submit(echo, 1).outcome() == "refused"
    worker.promote()
    assert worker.submit(sight).value() == ("0", "2", worker.spec.lane, "1")
    assert worker.submit(lambda: "colorsys" in sys.modules).value()
    node.ask("end_worker", worker.name, None)


def test_promotion_is_idempotent_and_refuses_all_else(node: Any, worker: Any) -> None:
    worker.promote(worker.fence)
    with pytest.raises(RuntimeError, match="only a standby can be promoted"):
        worker.promote(Fence(1, 999))
    standby = node.start_worker(promote=False)
    with pytest.raises(ValueError, match="caller"):
        standby.promote(caller="c" * 200)
    standby.promote()
    assert standby.submit(echo, 1).value() == 1
    node.ask("end_worker", standby.name, None)


def test_a_device_has_one_active_worker(node: Any) -> None:
    worker = node.start_worker()
    second = node.start_worker(worker.spec.lane, promote=False)
    with pytest.raises(DeviceBusy):
        second.promote()
    assert worker.submit(echo, 1).value() == 1
    assert node.ask("end_worker", worker.name, worker.fence) == ""
    second.promote()
    assert second.submit(echo, 2).value() == 2
    node.ask("end_worker", second.name, None)


def test_a_lock_that_is_not_mounted_is_said_before_anybody_waits(node: Any, tmp_path: Any) -> None:
    before = node.files()
    lock = str(tmp_path / "absent" / "device-d.lock")
    with pytest.raises(Exception, match=r"must be mounted .*kubernetes.device_locks"):
        node.start_worker(device="d", device_lock_path=lock)
    assert node.files() == before


def test_a_preload_that_fails_says_so(node: Any) -> None:
    before = node.files()
    with pytest.raises(Exception, match="preloading 'no_such_module' failed"):
        node.start_worker(preload=("no_such_module",))
    assert node.files() == before


def test_the_context_of_a_job(worker: Any) -> None:
    def look() -> Any:
        ended: list[str] = []
        context.on_job_end(lambda job: ended.append(job.job))
        sys.modules["__ended__"] = ended  # type: ignore[assignment]
        return context.current_job()

    done = worker.submit(look)
    seen = done.value()
    assert (seen.job, seen.lease.worker, seen.lease.fence) == (done.job, worker.name, worker.fence)
    assert (seen.caller.name, seen.profile) == ("caller", "p")
    assert worker.submit(lambda: list(sys.modules["__ended__"])).value() == [done.job]


def test_the_last_small_reply_can_be_had_again(worker: Any) -> None:
    done = worker.submit(echo, "again")
    assert done.value() == "again"
    header, value = worker.handle.replay.remote(done.job)
    assert protocol.unpack_header(ray.get(header)) == done.header()
    assert ray.get(value) == "again"
    worker.submit(lambda: np.zeros(10**6)).outcome()
    assert protocol.unpack_header(ray.get(worker.handle.replay.remote(done.job)[0])).outcome == (
        "refused"
    )


# ---------------------------------------------------------------- borders


def test_variables_of_one_job_are_gone_in_the_next(worker: Any) -> None:
    def look() -> Any:
        return os.environ.get("FP_SEED")

    assert worker.submit(look, env=(("FP_SEED", "1"),)).value() == "1"
    assert worker.submit(look).value() is None


@pytest.mark.parametrize("raising", [True, False])
def test_left_over_alarms_hit_nobody(worker: Any, raising: bool) -> None:
    def leave_alarm(delay: float) -> float:
        def ring(*_: Any) -> None:
            raise TimeoutError("left over")

        if raising:
            signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, delay)
        return delay

    rng = random.Random(3)
    for _ in range(100):
        delay = 10 ** rng.uniform(-5, -3)
        done = worker.submit(leave_alarm, delay)
        header = done.header()
        # It may fire inside its own job still, and must not fire anywhere else.
        assert header.outcome == "ok" or header.error.type_name == "TimeoutError"
        assert worker.submit(echo, 1).value() == 1


def test_sigint_outside_of_a_job_does_nothing(worker: Any, node: Any) -> None:
    for _ in range(50):
        worker.signal(signal.SIGINT)
        assert worker.submit(echo, 1).outcome() in ("ok", "exit")
    assert worker.is_alive()


# ---------------------------------------------------------------- stopping


def test_a_cancelled_job_ends_with_its_children_and_the_worker_stays(
    node: Any, worker: Any, eventually: Callable[..., Any], tmp_path: Any
) -> None:
    keeper = worker.submit(lambda: subprocess.Popen(["sleep", "1000"]).pid).value()
    pids = tmp_path / "pids"

    def with_children() -> None:
        first = subprocess.Popen(["setsid", "sleep", "1000"])
        second = subprocess.Popen("setsid sh -c 'sleep 1000 & sleep 1000' &", shell=True)
        pids.write_text(f"{first.pid} {second.pid}")
        time.sleep(1000)

    time.sleep(0.05)  # more than a clock tick after the one that stays
    done = worker.submit(with_children)
    eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    assert node.ask("cancel", worker.name, done.job) is True
    header = done.header()
    assert (header.outcome, header.cancel_reason) == ("cancelled", "cancelled")
    with pytest.raises(JobCancelled):
        ray.get(done.ref)
    left = worker.submit(
        lambda: (
            subprocess.run(
                ["ps", "--ppid", str(os.getpid()), "-o", "pid=,comm="],
                capture_output=True,
                text=True,
            ).stdout
        )
    ).value()
    assert [line.split() for line in left.splitlines() if "ps" not in line] == [
        [str(keeper), "sleep"]
    ]


def test_a_job_out_of_time_is_stopped(worker: Any) -> None:
    done = worker.submit(sleep, 1000, timeout_s=0.2)
    assert done.outcome() == "timeout"
    assert worker.submit(echo, 1).value() == 1


def test_a_stop_that_is_swallowed_still_counts(node: Any, worker: Any) -> None:
    def swallow(path: str) -> str:
        open(path, "w").close()
        try:
            time.sleep(1000)
        except BaseException:
            return "went on"
        return "never"

    path = f"{node.state.words_dir}/swallowing"
    done = worker.submit(swallow, path)
    while not os.path.exists(path):
        time.sleep(0.01)
    assert node.ask("cancel", worker.name, done.job)
    assert done.outcome() == "cancelled"
    assert worker.submit(echo, 1).value() == 1


class Sticky:
    """Python ignores what is raised inside a ``__del__``."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __del__(self) -> None:
        open(self.path, "w").close()
        time.sleep(1000)


def test_a_stop_that_python_swallows_is_followed_by_another(node: Any, worker: Any) -> None:
    def swallow(path: str) -> None:
        thing = Sticky(path)
        del thing
        time.sleep(1000)

    path = f"{node.state.words_dir}/sticky"
    done = worker.submit(swallow, path)
    while not os.path.exists(path):
        time.sleep(0.01)
    assert node.ask("cancel", worker.name, done.job, "cancelled", 4.0)
    assert done.outcome() == "cancelled"
    assert worker.submit(echo, 1).value() == 1


def test_an_import_is_finished_before_its_job_is_stopped(
    node: Any, worker: Any, tmp_path: Any
) -> None:
    """A module that is half imported would be broken for every later job."""
    (tmp_path / "slow_import.py").write_text(
        "import pathlib, time\n"
        "pathlib.Path(__file__).with_suffix('.begun').touch()\n"
        "time.sleep(1)\n"
        "whole = True\n"
    )

    def load(folder: str) -> bool:
        sys.path.append(folder)
        import slow_import

        time.sleep(1000)
        return bool(slow_import.whole)

    done = worker.submit(load, str(tmp_path))
    while not (tmp_path / "slow_import.begun").exists():
        time.sleep(0.01)
    assert node.ask("cancel", worker.name, done.job, "cancelled", 10.0)
    assert done.outcome() == "cancelled"
    assert worker.submit(lambda: sys.modules["slow_import"].whole).value() is True


def test_a_cancel_before_its_job_arrives(node: Any, worker: Any, call: Callable[..., Any]) -> None:
    late = call(echo, 1)
    assert node.ask("cancel", worker.name, late.job) is True
    header = worker.run(late).header()
    assert (header.outcome, header.started_at) == ("cancelled", 0.0)
    assert worker.run(call(echo, 2)).value() == 2
    assert node.ask("cancel", worker.name, late.job) is False


def test_stops_at_random_offsets_hit_their_own_job_or_nothing(node: Any) -> None:
    """A cancel that was accepted ends its job as cancelled; one that was not, changes nothing."""

    def spin(value: int, seconds: float) -> int:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        return value

    def ring(value: int, seconds: float) -> int:
        signal.setitimer(signal.ITIMER_REAL, 3 * seconds)
        return value

    def daemon(value: int, seconds: float) -> int:
        subprocess.Popen(["setsid", "sleep", "1000"])
        time.sleep(seconds)
        return value

    rng = random.Random(11)
    workers = [node.start_worker() for _ in range(2)]
    seen: collections.Counter[tuple[str, str]] = collections.Counter()
    for number in range(400):
        under_way = []
        for worker in workers:
            fn = rng.choice([echo, spin, spin, ring] + [daemon] * (number % 10 == 0))
            seconds = rng.choice([2e-4, 1e-3, 3e-3])
            how = rng.choice(["cancel", "cancel", "timeout", "let"])
            args = (number,) if fn is echo else (number, seconds)
            done = worker.submit(fn, *args, timeout_s=seconds if how == "timeout" else 0.0)
            under_way.append((worker, done, how, fn))
        time.sleep(rng.random() * rng.choice([0, 1e-3, 4e-3]))
        answers = {
            done.job: node.warden.cancel.remote(worker.name, done.job)
            for worker, done, how, _ in under_way
            if how == "cancel"
        }
        for _, done, how, fn in under_way:
            outcome = done.outcome()
            seen[how, outcome] += 1
            if fn is ring and outcome == "error":  # its alarm came before it had returned
                assert done.header().error.type_name == "TimeoutError"
                assert how != "cancel" or not ray.get(answers[done.job])
            elif how == "cancel":
                assert outcome == ("cancelled" if ray.get(answers[done.job]) else "ok")
            else:
                allowed = ("let", "ok"), ("timeout", "ok"), ("timeout", "timeout")
                assert (how, outcome) in allowed, done.header().error
            if outcome == "ok":
                assert done.value() == number
    assert seen["cancel", "cancelled"] and seen["cancel", "ok"]
    for worker in workers:
        assert worker.is_alive() and worker.submit(echo, 1).value() == 1
        assert node.ask("end_worker", worker.name, worker.fence) == ""


# ---------------------------------------------------------------- epochs


def test_a_worker_of_an_older_epoch_is_refused(node: Any) -> None:
    old = node.start_worker(promote=False)
    epoch = node.epoch
    node.hello(epoch + 1)
    with pytest.raises(StaleEpoch):
        old.promote(epoch=epoch)
    with pytest.raises(Exception, match=f"order of epoch {epoch} refused"):
        node.start_worker(epoch=epoch)
    with pytest.raises(StaleEpoch):
        node.ask("retire", epoch, old.name)
    old.promote()
    assert old.submit(echo, 1).value() == 1
    node.ask("end_worker", old.name, None)
