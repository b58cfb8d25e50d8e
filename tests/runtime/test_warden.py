"""The warden: revokes, watches, ends and sweeps, and survives itself and its workers."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from firepool_ray.core.model import Fence
from firepool_ray.errors import StaleEpoch
from firepool_ray.runtime import processes
from firepool_ray.runtime.news import NewsLog, Sight, observe
from firepool_ray.runtime.protocol import Word


def echo(value: Any) -> Any:
    return value


def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


def hold_the_gil(seconds: int) -> str:
    libc = ctypes.PyDLL(None)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        libc.usleep(100_000)
    return "held"


def wait_until_running(node: Any, worker: Any, job: str) -> None:
    while not node.ask("settle", worker.name, worker.fence, job, False).running:
        time.sleep(0.01)


def hear(node: Any, worker: Any, *kinds: str) -> list[Any]:
    """News of a worker, from the first on, until all ``kinds`` have come."""
    cursor, news = 0, []
    deadline = time.monotonic() + 60
    while not set(kinds) <= {item.kind for item in news}:
        assert time.monotonic() < deadline, news
        cursor, more = node.ask("watch", node.epoch, cursor)
        news += [item for item in more if item.worker == worker.name]
    return news


# ---------------------------------------------------------------- revoking


def test_an_idle_lease_is_revoked_at_once_and_regranted(node: Any, victim: Any) -> None:
    assert victim.submit(echo, 1).value() == 1
    old, new = victim.fence, Fence(node.epoch, 10**6)
    assert victim.revoke("if_idle", 1000.0) == "busy"
    time.sleep(0.05)  # the reply has been stored by then
    assert victim.revoke() == "gone"
    assert victim.revoke() == "gone"
    assert victim.submit(echo, 1).outcome() == "refused"
    assert node.ask("regrant", node.epoch, victim.name, old, new, "other") is True
    assert node.ask("regrant", node.epoch, victim.name, old, new, "other") is True
    assert victim.revoke() == "stale"
    victim.fence = new
    assert victim.submit(echo, 2).value() == 2


def test_a_lease_moves_to_a_sibling_in_one_step(node: Any, victim: Any) -> None:
    new = Fence(node.epoch, 10**6)
    assert victim.revoke("if_idle", 0.0, new, "sibling") == "moved"
    assert victim.revoke("if_idle", 0.0, new, "sibling") == "moved"
    assert victim.submit(echo, 1).outcome() == "refused"
    victim.fence = new
    assert victim.submit(echo, 1).value() == 1


def test_a_draining_lease_finishes_its_job_and_no_further(node: Any, victim: Any) -> None:
    done = victim.submit(sleep, 0.5)
    wait_until_running(node, victim, done.job)
    assert victim.revoke("if_idle") == "busy"
    assert victim.revoke("drain") == "draining"
    with pytest.raises(ValueError, match="revoke its lease before"):
        node.ask("retire", node.epoch, victim.name)
    late = victim.submit(echo, 1)
    assert (done.value(), done.header().lease_state) == ("slept", "gone")
    assert late.outcome() == "refused"
    assert hear(node, victim, "ended")[-1].fence == victim.fence
    assert node.ask("retire", node.epoch, victim.name) == ""
    assert not victim.is_alive()


def test_stop_drains_and_ends_the_job(node: Any, victim: Any) -> None:
    done = victim.submit(sleep, 1000)
    wait_until_running(node, victim, done.job)
    assert victim.revoke("stop") == "draining"
    header = done.header()
    assert (header.outcome, header.cancel_reason) == ("cancelled", "client_lost")
    assert header.lease_state == "gone"


def test_a_worker_is_not_ended_before_its_last_value_is_stored(node: Any, victim: Any) -> None:
    import numpy as np

    done = victim.submit(lambda: np.zeros(200_000_000, np.uint8))
    while not node.ask("settle", victim.name, victim.fence, done.job, False).started:
        time.sleep(0.001)
    assert victim.revoke("drain") in ("draining", "gone")
    hear(node, victim, "ended")
    assert node.ask("retire", node.epoch, victim.name) == ""
    assert ray.get(done.ref).nbytes == 200_000_000


def test_a_reply_that_waits_for_a_processor_is_not_cut_off(node: Any, victim: Any) -> None:
    """Ray sends it from a thread of its own, after the job's word says "ended"."""
    spinners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=_on_one_processor)
        for _ in range(4)
    ]
    try:
        for thread in os.listdir(f"/proc/{victim.pid}/task"):
            os.sched_setaffinity(int(thread), {0})
        done = victim.submit(sleep, 0.5)
        wait_until_running(node, victim, done.job)
        assert victim.revoke("drain") == "draining"
        hear(node, victim, "ended")
        assert node.ask("retire", node.epoch, victim.name) == ""
        assert done.header().outcome == "ok"
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def _on_one_processor() -> None:
    os.sched_setaffinity(0, {0})


# ---------------------------------------------------------------- ending


def test_retiring_sweeps_everything_and_keeps_the_records(node: Any, victim: Any) -> None:
    def hide() -> list[int]:
        subprocess.Popen(["setsid", "sleep", "1000"])
        subprocess.Popen(["env", "-i", "setsid", "sleep", "1000"])
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        time.sleep(0.2)
        return [p.pid for p in processes.descendants(os.getpid(), processes.table())]

    done = victim.submit(hide)
    pids = done.value()
    assert len(pids) == 3
    time.sleep(0.1)
    assert victim.revoke() == "gone"
    assert node.ask("retire", node.epoch, victim.name) == ""
    assert node.ask("retire", node.epoch, victim.name) == ""
    assert not [pid for pid in pids if (seen := processes.look(pid)) and not seen.ended]
    assert not [name for name in node.files() if name.startswith(f"{victim.name}.")]
    assert [record.outcome for record in node.ask("records", done.job)] == ["ok"]
    settled = node.ask("settle", victim.name, victim.fence, done.job)
    assert (settled.started, settled.alive) == (True, False)
    assert not [item for item in hear(node, victim) if item.kind == "exited"]


def test_a_job_that_does_not_stop_takes_its_worker_along(node: Any, victim: Any) -> None:
    def stubborn() -> None:
        subprocess.Popen(["setsid", "sleep", "1000"])
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                continue

    done = victim.submit(stubborn)
    wait_until_running(node, victim, done.job)
    assert node.ask("cancel", victim.name, done.job, "cancelled", 0.3) is True
    with pytest.raises(RayActorError):
        done.header()
    exited = hear(node, victim, "exited")[-1]
    assert "did not stop within 0.3 s (cancelled)" in exited.detail
    settled = node.ask("settle", victim.name, victim.fence, done.job)
    assert settled == (True, False, False, "cancelled", exited.detail)
    assert node.ask("retire", node.epoch, victim.name) == ""


def test_an_interrupt_ends_what_runs_and_says_why(node: Any, victim: Any) -> None:
    done = victim.submit(sleep, 1000)
    wait_until_running(node, victim, done.job)
    node.ask("interrupt", node.epoch, "its pod goes")
    with pytest.raises(RayActorError):
        done.header()
    settled = node.ask("settle", victim.name, victim.fence, done.job)
    assert settled == (True, False, False, "", "its pod goes")


def test_an_interrupt_leaves_idle_workers_alone(node: Any, victim: Any) -> None:
    node.ask("interrupt", node.epoch, "its pod goes")
    assert victim.is_alive()


def test_a_job_that_holds_the_gil_is_watched_and_ended_all_the_same(node: Any, victim: Any) -> None:
    done = victim.submit(hold_the_gil, 1000)
    wait_until_running(node, victim, done.job)
    assert victim.revoke("if_idle") == "busy"
    assert node.ask("kill_worker", victim.name, victim.fence, done.job) is True
    with pytest.raises(RayActorError):
        done.header()
    assert "outcome" in hear(node, victim, "exited")[-1].detail


def test_a_stopped_worker_is_ended_too(node: Any, victim: Any) -> None:
    victim.signal(signal.SIGSTOP)
    assert victim.revoke() == "gone"
    assert node.ask("retire", node.epoch, victim.name) == ""
    assert not victim.is_alive()


def test_a_worker_stopped_inside_its_words_lock_hangs_nobody(node: Any, victim: Any) -> None:
    def lock_and_stop() -> None:
        import fcntl

        for fd in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{fd}").endswith(".word"):
                    fcntl.flock(int(fd), fcntl.LOCK_EX)
                    os.kill(os.getpid(), signal.SIGSTOP)
            except OSError:
                continue

    done = victim.submit(lock_and_stop)
    wait = processes.look
    while (seen := wait(victim.pid)) is not None and seen.state != "T":
        time.sleep(0.01)
    slow = node.warden.kill_worker.remote(victim.name, victim.fence, done.job)
    assert node.ask("ping")[0] == node.epoch
    assert ray.get(slow, timeout=60) is True
    assert node.ask("retire", node.epoch, victim.name) == ""
    assert not victim.is_alive()


def test_a_worker_that_is_killed_is_reported_and_its_orphans_are_swept(
    node: Any, victim: Any
) -> None:
    def leave() -> int:
        return subprocess.Popen(["setsid", "sleep", "1000"]).pid

    orphan = victim.submit(leave).value()
    done = victim.submit(sleep, 1000)
    wait_until_running(node, victim, done.job)
    victim.signal(signal.SIGKILL)
    hear(node, victim, "exited")
    settled = node.ask("settle", victim.name, victim.fence, done.job)
    assert settled[:4] == (True, False, False, "")
    assert settled.end.startswith("the process ")
    never = node.ask("settle", victim.name, victim.fence, "never")
    assert never.started is False
    assert victim.revoke() == "dead"
    assert node.ask("retire", node.epoch, victim.name) == ""
    seen = processes.look(orphan)
    assert seen is None or seen.ended


# ---------------------------------------------------------------- settling


def test_a_job_that_never_arrived_is_fenced_off(node: Any, victim: Any) -> None:
    assert victim.submit(echo, 1).value() == 1
    assert node.ask("settle", victim.name, victim.fence, "lost") == (False, False, True, "", "")
    assert victim.submit(echo, 2).outcome() == "refused"
    assert hear(node, victim, "ended")[-1].fence == victim.fence


def test_running_and_finished_jobs_are_told_apart(node: Any, victim: Any) -> None:
    done = victim.submit(sleep, 0.3)
    wait_until_running(node, victim, done.job)
    assert done.value() == "slept"
    assert node.ask("settle", victim.name, victim.fence, done.job) == (True, False, True, "", "")
    assert victim.submit(echo, 2).value() == 2
    assert node.ask("kill_worker", victim.name, Fence(1, 1), done.job) is False
    assert victim.is_alive()


# ---------------------------------------------------------------- restarts and epochs


def test_a_restarted_warden_adopts_words_running_jobs_and_epoch(
    node: Any, victim: Any, eventually: Callable[..., Any]
) -> None:
    done = victim.submit(sleep, 4.0, timeout_s=1000)
    overdue = node.start_worker()
    late = overdue.submit(sleep, 1000, timeout_s=1.0)
    wait_until_running(node, victim, done.job)
    state = node.hello(node.epoch + 1)
    _, pid = node.ask("ping")
    os.kill(pid, signal.SIGKILL)

    def back() -> Any:
        try:
            return node.ask("ping")[1] != pid
        except RayActorError:
            return False

    eventually(back)
    with pytest.raises(StaleEpoch):
        node.ask("hello", node.epoch - 1)
    adopted = {entry.spec.worker: entry for entry in node.hello(node.epoch).workers}
    assert adopted[victim.name].word.job == done.job
    assert adopted[victim.name].alive
    assert ray.get(adopted[victim.name].handle.ready.remote(), timeout=60).pid == victim.pid
    assert {e.spec.worker for e in state.workers} >= {victim.name, overdue.name}
    assert done.value() == "slept"
    assert late.outcome() == "timeout"
    time.sleep(0.05)
    assert victim.revoke() == "gone"
    assert node.ask("retire", node.epoch, victim.name) == ""
    node.ask("end_worker", overdue.name, None)


def test_hello_sweeps_the_dead(node: Any, eventually: Callable[..., Any]) -> None:
    dead = node.start_worker()
    orphan = dead.submit(lambda: subprocess.Popen(["setsid", "sleep", "1000"]).pid).value()
    dead.signal(signal.SIGKILL)
    eventually(lambda: not dead.is_alive())
    state = node.hello(node.epoch)
    assert dead.name not in {entry.spec.worker for entry in state.workers if entry.alive}
    assert node.ask("retire", node.epoch, dead.name) == ""
    seen = processes.look(orphan)
    assert seen is None or seen.ended


# ---------------------------------------------------------------- news (pure)


def word(state: Any, since: float, number: int = 1) -> Word:
    return Word(state, 1, Fence(1, number), 1, 1, since, 0.0, "q", "c", "x", "", "", "", "")


def test_news_are_the_changes_that_last() -> None:
    sight = Sight()

    def look(reading: Word, now: float, replying: bool = False) -> list[Any]:
        return observe(sight, reading, replying, now, 0.02)

    assert look(word("standby", 0.0)._replace(fence=Fence(0, 0)), 1.0) == []
    assert look(word("idle", 1.0), 1.01) == []
    assert look(word("idle", 1.0), 1.03) == ["idle"]
    assert look(word("idle", 1.0), 1.10) == []
    assert look(word("busy", 1.2), 1.20) == ["busy"]
    assert look(word("idle", 1.3), 1.31) == []
    assert look(word("idle", 1.3), 1.33, True) == []
    assert look(word("idle", 1.3), 1.33) == ["idle"]
    assert look(word("idle", 1.5), 1.60) == []  # a short job in between: not worth a message yet
    assert look(word("idle", 1.5), 2.40) == ["busy", "idle"]
    assert look(word("draining", 2.5), 2.50) == ["busy"]
    assert look(word("revoked", 2.6), 2.60, True) == []
    assert look(word("revoked", 2.6), 2.61) == ["ended"]
    assert look(word("revoked", 2.6), 2.70) == []
    assert look(word("idle", 3.0, 2), 3.10) == ["idle"]


def test_the_log_is_read_from_a_cursor() -> None:
    log = NewsLog(100)
    log.add("idle", "w", Fence(1, 1), 5.0)
    log.add("exited", "w", Fence(1, 1), 6.0, "why")
    assert [(n.kind, n.age_s) for n in log.after(0, 7.0)] == [("idle", 2.0), ("exited", 1.0)]
    assert [n.detail for n in log.after(101, 7.0)] == ["why"]
    assert log.after(log.last, 7.0) == []
    log.clear()
    assert (log.after(0, 7.0), log.last) == ([], 102)
