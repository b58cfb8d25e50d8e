"""The job border: whatever a job leaves behind, the process is as before."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from firepool_ray.binding.environ import Border, apply_env, restore_env

#: Not by SIGALRM, which these tests are about.
pytestmark = pytest.mark.timeout(120, method="thread")


def run_alone(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def border() -> Iterator[Border]:
    border = Border()
    yield border
    border.restore()


def test_handlers_and_timers_are_put_back(border: Border) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.signal(signal.SIGRTMIN + 7, signal.SIG_IGN)
    signal.alarm(100)
    signal.setitimer(signal.ITIMER_VIRTUAL, 100)
    signal.setitimer(signal.ITIMER_PROF, 100)

    border.restore()

    assert signal.getsignal(signal.SIGUSR1) == before
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGRTMIN + 7) == signal.SIG_DFL
    assert signal.alarm(0) == 0
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_alarms_that_raise_around_the_border_cannot_break_it() -> None:
    program = """
        import random, signal, time
        from firepool_ray.binding.environ import Border

        def quiet(*_):
            pass

        def ring(*_):
            raise TimeoutError("left over")

        signal.signal(signal.SIGALRM, quiet)  # as in a worker: the default would end it
        border = Border()
        rng = random.Random(5)
        inside = around = 0
        for _ in range(2000):
            try:
                try:
                    signal.signal(signal.SIGALRM, ring)
                    signal.setitimer(signal.ITIMER_REAL, 10 ** rng.uniform(-5.5, -3.5))
                    end = time.perf_counter() + 1e-4
                    while time.perf_counter() < end:
                        pass
                except TimeoutError:
                    inside += 1
                border.restore()
            except TimeoutError:
                around += 1
                border.restore()
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
            assert signal.getsignal(signal.SIGALRM) is quiet
        assert inside, (inside, around)
    """
    assert run_alone(program) == ""


def test_blocked_signals_and_what_waits_behind_them_go(border: Border) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGRTMIN + 5})
    signal.raise_signal(signal.SIGUSR2)  # would end this process
    border.restore()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGUSR2}


def test_folder_umask_limits_and_streams_are_put_back(border: Border, tmp_path: Path) -> None:
    cwd, streams = os.getcwd(), (sys.stdin, sys.stdout, sys.stderr)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    mask = os.umask(0o123)
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, files[1]))
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115

    border.restore()

    assert os.getcwd() == cwd
    assert (sys.stdin, sys.stdout, sys.stderr) == streams
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == files
    assert os.umask(mask) == mask


def test_variables_of_the_job_go_and_those_of_its_imports_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FP_OLD", "old")
    monkeypatch.delenv("FP_NEW", raising=False)
    monkeypatch.delenv("FP_LIBRARY", raising=False)

    before = apply_env([("FP_OLD", "job"), ("FP_NEW", "job"), ("FP_OLD", "again")])
    assert (os.environ["FP_OLD"], os.environ["FP_NEW"]) == ("again", "job")
    os.environ["FP_LIBRARY"] = "set on import"
    del os.environ["FP_NEW"]
    restore_env(before)

    assert os.environ["FP_OLD"] == "old"
    assert "FP_NEW" not in os.environ
    assert os.environ.pop("FP_LIBRARY") == "set on import"


def test_a_job_that_disarms_os_and_signal_does_not_disarm_the_border() -> None:
    program = """
        import os, signal
        from firepool_ray.binding.environ import Border
        border = Border()
        signal.alarm(100)
        check = signal.alarm
        for module, names in (
            (os, ("chdir", "getcwd", "umask", "kill")),
            (signal, ("signal", "getsignal", "setitimer", "alarm")),
        ):
            for name in names:
                setattr(module, name, None)
        border.restore()
        print(check(0))
    """
    assert run_alone(program) == "0\n"
