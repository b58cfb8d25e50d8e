"""Drill 4: 10,000 cancels, timeouts and left-over alarms around the end of very short jobs.

Each job is followed by an innocent one on the same lease, which nobody may hit. No worker may
die: every job here lets itself be stopped.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import firepool_ray as fp
from firepool_ray.errors import JobCancelled, JobTimeout
from tests import jobs
from tests.conftest import KEPT, PATIENCE_S, eventually, is_gone, pool_of

ROUNDS = 10_000
THREADS = 4
KINDS = ("cancel", "cancel", "cancel", "timeout", "timeout", "alarm", "alarm", "nothing")
#: One round in so many starts a process in a session of its own.
CHILD_EVERY = 100

SETTINGS = {
    "profiles": {
        "cpu": {
            "cpus": 0.25,
            "standbys": 0,
            "min_lanes": THREADS,
            "max_lanes": THREADS,
            **KEPT,
        },
    },
    "window_s": 0.5,
}


class OwnAlarm(Exception):
    """The alarm that a job has set itself, and that went off while it was running."""


def _on_alarm(*_: Any) -> None:
    raise OwnAlarm


def _work(token: int, seconds: float, alarm_s: float, child_path: str) -> tuple[int, int]:
    """Busy for some milliseconds; may leave a timer behind that goes off after its end."""
    if alarm_s:
        signal.signal(signal.SIGALRM, _on_alarm)
        signal.setitimer(signal.ITIMER_REAL, alarm_s, alarm_s)
    if child_path:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with open(child_path, "a") as file:
            file.write(f"{token} {child.pid}\n")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return token, os.getpid()


class Storm(threading.Thread):
    """One caller, and so one worker of its own, with everything that went wrong."""

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__(name=f"storm{number}")
        self.number = number
        self.dice = random.Random(number)
        self.children = folder / f"children{number}"
        self.caller = fp.options(caller=f"storm{number}")
        self.outcomes: Counter[str] = Counter()
        self.ended: dict[int, str] = {}  #: outcome of the rounds with children
        self.wrong: list[str] = []
        self.pids: set[int] = set()

    def run(self) -> None:
        for token in range(0, 2 * ROUNDS // THREADS, 2):
            try:
                self.round(token)
            except BaseException as error:
                self.wrong.append(f"round {token} of {self.name}: {error!r}")
            if len(self.wrong) > 10:
                return

    def round(self, token: int) -> None:
        dice = self.dice
        kind = dice.choice(KINDS)
        seconds = dice.uniform(0.001, 0.003)
        has_child = token % (2 * CHILD_EVERY) == 0
        alarm_s = dice.uniform(0.5, 1.5) * seconds if kind == "alarm" else 0.0
        caller = self.caller
        if kind == "timeout":
            caller = caller.options(timeout_s=dice.uniform(0.5, 1.5) * seconds)
        path = str(self.children) if has_child else ""
        job = caller.submit(_work, token, seconds, alarm_s, path)
        innocent = self.caller.submit(_work, token + 1, 0.0, 0.0, "")
        asked = None
        if kind == "cancel":
            time.sleep(dice.uniform(0.0, 2.0) * seconds)
            asked = job.cancel()
        outcome = self.outcome_of(job, token)
        self.outcomes[f"{kind}: {outcome}"] += 1
        if has_child:
            self.ended[token] = outcome
        allowed = {"value"}
        if asked:
            allowed.add("cancelled")
        if kind == "timeout":
            allowed.add("timeout")
        if kind == "alarm":
            allowed.add("own alarm")
        if outcome not in allowed:
            self.wrong.append(f"{kind} {token} of {self.name} ended as {outcome}")
        if (hit := self.outcome_of(innocent, token + 1)) != "value":
            self.wrong.append(f"the job after {kind} {token} of {self.name} ended as {hit}")

    def outcome_of(self, job: fp.Job, token: int) -> str:
        try:
            value, pid = job.result(timeout_s=PATIENCE_S)
        except JobCancelled:
            outcome = "cancelled"
        except JobTimeout:
            outcome = "timeout"
        except OwnAlarm:
            outcome = "own alarm"
        else:
            self.pids.add(pid)
            outcome = "value" if value == token else f"the value of another job, {value}"
        again = job.exception()
        assert (again is None) == (outcome == "value"), "it ended twice"
        assert not job.cancel(), "it can be cancelled after its end"
        return outcome


def test_cancels_timeouts_and_alarms_hit_their_own_job_only(tmp_path: Path) -> None:
    with pool_of(SETTINGS, num_cpus=2, num_gpus=0):
        storms = [Storm(number, tmp_path) for number in range(THREADS)]
        before = _one_worker_each(storms, tmp_path)
        for storm in storms:
            storm.start()
        for storm in storms:
            storm.join()
        wrong = [wrong for storm in storms for wrong in storm.wrong]
        assert not wrong, wrong
        assert [storm.pids for storm in storms] == [{pid} for pid in before]
        assert [_pid_of(storm) for storm in storms] == before, "a worker has died"
        _assert_children_went_with_their_jobs(storms)
        seen = sum((storm.outcomes for storm in storms), Counter[str]())
        assert sum(seen.values()) == ROUNDS
        for kind, outcome in (("cancel", "cancelled"), ("timeout", "timeout")):
            assert seen[f"{kind}: {outcome}"] > ROUNDS / 100, f"the offsets miss: {seen}"
            assert seen[f"{kind}: value"] > ROUNDS / 100, f"the offsets miss: {seen}"


def _one_worker_each(storms: list[Storm], folder: Path) -> list[int]:
    """Bind a worker to every caller, by holding all of them at once."""
    go = folder / "go"
    held = [
        storm.caller.submit(jobs.mark_and_wait, str(folder / "held"), str(go)) for storm in storms
    ]
    eventually(lambda: all(job.info().state == "running" for job in held))
    go.touch()
    pids = [job.result(timeout_s=PATIENCE_S) for job in held]
    assert len(set(pids)) == len(storms)
    return pids


def _pid_of(storm: Storm) -> int:
    pid = storm.caller.submit(os.getpid).result(timeout_s=PATIENCE_S)
    assert isinstance(pid, int)
    return pid


def _assert_children_went_with_their_jobs(storms: list[Storm]) -> None:
    for storm in storms:
        for line in storm.children.read_text().splitlines():
            token, child = map(int, line.split())
            if storm.ended[token] in ("cancelled", "timeout"):
                eventually(lambda child=child: is_gone(child))
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
