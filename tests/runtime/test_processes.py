"""Process trees: found, stopped and ended, whatever they do to hide."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firepool_ray.runtime import device, leasing, processes, words
from firepool_ray.runtime.sweep import sweep

ROOT = Path(__file__).parents[2]


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a subreaper that runs a program and then prints a line; ended afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str) -> subprocess.Popen[str]:
        text = textwrap.dedent(
            """
            import os, subprocess, sys, time
            from firepool_ray.runtime import processes, words
            processes.adopt_orphans()
            os.environ[processes.MARKER] = words.word_path(sys.argv[1], "w1")
            """
        )
        text += textwrap.dedent(program) + "\nprint('ready', flush=True)\ntime.sleep(1000)\n"
        child = subprocess.Popen(
            [sys.executable, "-c", text, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        started.append(child)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        return child

    yield start
    for child in started:
        if child.poll() is None:
            processes.kill_tree(child.pid, processes.start_of(child.pid), 5.0)
        child.wait()


def below(pid: int) -> list[processes.Process]:
    return processes.descendants(pid, processes.table())


HIDING = """
    subprocess.Popen(["setsid", "sleep", "1000"])
    subprocess.Popen("setsid sh -c 'sleep 1000 & sleep 1000' &", shell=True)
    subprocess.Popen(["env", "-i", "setsid", "sleep", "1000"])
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        os._exit(0)
    time.sleep(0.3)
"""


def test_the_tree_holds_sessions_orphans_and_forks(
    tree: Callable[..., subprocess.Popen[str]],
) -> None:
    root = tree(HIDING)
    living = [p for p in below(root.pid) if not p.ended]
    assert len(living) >= 6
    left = processes.kill_tree(root.pid, processes.start_of(root.pid), 5.0)
    assert left == []
    assert not any(processes.is_alive(p.pid, p.start) for p in living)
    assert root.wait() == -signal.SIGKILL


def test_only_the_young_end_without_their_root(tree: Callable[..., subprocess.Popen[str]]) -> None:
    root = tree("subprocess.Popen(['sleep', '1000'])")
    old = below(root.pid)
    assert len(old) == 1
    assert processes.kill_below(root.pid, old[0].start + 1, 5.0) == []
    assert processes.is_alive(old[0].pid, old[0].start)
    assert processes.kill_below(root.pid, old[0].start, 5.0) == []
    assert not processes.is_alive(old[0].pid, old[0].start)
    assert processes.is_alive(root.pid, processes.start_of(root.pid))


def test_a_process_collects_its_own_dead() -> None:
    program = """
        import os, subprocess, time
        from firepool_ray.runtime import processes
        processes.adopt_orphans()
        subprocess.Popen(["sleep", "1000"])
        subprocess.Popen("setsid sh -c 'sleep 1000 & sleep 1000' &", shell=True)
        time.sleep(0.3)
        assert processes.kill_own_since(0, 5.0) == []
        print(len(processes.descendants(os.getpid(), processes.table())))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_pid_that_is_used_again_is_left_alone() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    start = processes.start_of(child.pid)
    try:
        assert processes.Handle.open(child.pid, start + 1) is None
        assert processes.kill_tree(child.pid, start + 1, 1.0) == []
        assert processes.is_alive(child.pid, start)
        assert not processes.is_alive(child.pid, start + 1)
    finally:
        child.kill()
        child.wait()
    assert processes.Handle.open(child.pid, start) is None


def test_names_with_brackets_and_spaces(tmp_path: Path) -> None:
    odd = tmp_path / "a) S (b"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(odd), "1000"])
    try:
        wait_for(lambda: b"a) S" in Path(f"/proc/{child.pid}/comm").read_bytes())
        seen = processes.look(child.pid)
        assert seen is not None and seen.parent == os.getpid() and seen.state in "RSD"
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("known_before", [False, True])
def test_a_sweep_finds_what_survived_a_killed_worker(
    tree: Callable[..., subprocess.Popen[str]], tmp_path: Path, known_before: bool
) -> None:
    """Orphans of a dead root hang elsewhere: the marker, the word's mapping, or memory finds them.

    A program started without the marker is found only if it was seen in the tree before.
    """
    word = words.word_path(str(tmp_path), "w1")
    words.WordFile.create(word, leasing.fresh_word(1, 1, 1, 0.0))
    hiding = HIDING if known_before else HIDING.replace('"env", "-i", ', "")
    root = tree(f"word = words.WordFile.open(sys.argv[1] + '/w1.word')\n{textwrap.dedent(hiding)}")
    start = processes.start_of(root.pid)
    living = [p for p in below(root.pid) if not p.ended]
    others = [words.word_path(str(tmp_path), "w11"), words.word_path("/another/pool", "w1")]
    bystanders = [
        subprocess.Popen(["sleep", "1000"], env={**os.environ, processes.MARKER: other})
        for other in others
    ]
    try:
        root.kill()
        root.wait()
        left = sweep(
            "w1",
            root.pid,
            start,
            word,
            known={(p.pid, p.start) for p in living} if known_before else (),
            spare=(),
            device_lock="",
            gpu_ids=(),
            deadline=time.monotonic() + 10,
        )
        assert left == ""
        assert not [p for p in living if processes.is_alive(p.pid, p.start)]
        assert [bystander.poll() for bystander in bystanders] == [None, None]
    finally:
        for bystander in bystanders:
            bystander.kill()
            bystander.wait()


def test_a_sweep_does_not_pass_while_the_device_is_locked(tmp_path: Path) -> None:
    lock = tmp_path / "device.lock"
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = subprocess.Popen(["true"])
        start = processes.start_of(child.pid)
        child.wait()

        def run(deadline_s: float) -> str:
            return sweep(
                "w1",
                child.pid,
                start,
                str(tmp_path / "w1.word"),
                known=(),
                spare=(),
                device_lock=str(lock),
                gpu_ids=(),
                deadline=time.monotonic() + deadline_s,
            )

        assert "still locked" in run(0.1)
    assert run(5.0) == ""
    other = device.take(str(lock), "w2", 0.0)
    assert run(0.1) == ""  # of another pod: no reason to keep this one's lane
    os.close(other)


def test_how_a_process_ended() -> None:
    child = subprocess.Popen(["sh", "-c", "kill -9 $$"])
    start = processes.start_of(child.pid)
    handle = processes.Handle.open(child.pid, start)
    if handle is not None:
        assert handle.ended(5.0)
        handle.close()
    assert processes.exit_text(child.pid, start) == "the process was ended by signal 9"
    child.wait()
    assert processes.exit_text(child.pid, start) == "the process ended"
