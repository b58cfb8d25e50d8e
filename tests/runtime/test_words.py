"""Lease words on disk, and what they may become."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from firepool_ray.core.model import Caller, Fence
from firepool_ray.errors import IllegalTransition
from firepool_ray.runtime import leasing, words
from firepool_ray.runtime.protocol import JobRecord, Promotion, Topology, Word, WorkerSpec
from firepool_ray.runtime.records import RING_RECORDS, Ring
from firepool_ray.runtime.ward import History

FENCE = Fence(3, 7)
NEXT = Fence(3, 8)
PROMOTION = Promotion(
    3, FENCE, Caller("rl", "grpo"), "deps", "client", (), Topology("l", "n", "ip", (), 1.0)
)


def standby() -> Word:
    return leasing.fresh_word(2, os.getpid(), 5, 100.0)


def idle() -> Word:
    word = leasing.promoted(standby(), PROMOTION, 110.0)
    assert word is not None
    return word


def busy(job: str = "job", timeout_s: float = 0.0) -> Word:
    word = leasing.begun(idle(), FENCE, job, 120.0, timeout_s)
    assert word is not None
    return word


@pytest.fixture
def file(tmp_path: Path) -> words.WordFile:
    return words.WordFile.create(str(tmp_path / "w.word"), standby())


# ---------------------------------------------------------------- on disk


def test_a_word_survives_the_file(file: words.WordFile) -> None:
    word = busy("jöb", 5.0)._replace(cancel="jöb", cancel_reason="timeout")
    file.write(idle())
    file.write(word)
    assert file.read() == word
    assert words.WordFile.open(file.path).read() == word


def test_every_text_has_a_bound_and_is_never_cut() -> None:
    words.check_texts(queue="q" * 63, caller="ü" * 95, client="c" * 95, deps="")
    with pytest.raises(ValueError, match="caller .* takes 192 bytes; 191 is the most"):
        words.check_texts(caller="ü" * 96)
    with pytest.raises(ValueError, match="client"):
        words.check_texts(client="a\0b")


def test_other_files_are_refused(tmp_path: Path, file: words.WordFile) -> None:
    (tmp_path / "short.word").write_bytes(b"x")
    (tmp_path / "other.word").write_bytes(b"x" * os.stat(file.path).st_size)
    for name in ("short.word", "other.word"):
        with pytest.raises(words.DamagedWord):
            words.WordFile.open(str(tmp_path / name))


def test_a_state_that_no_edge_leads_to_is_refused(file: words.WordFile) -> None:
    with pytest.raises(IllegalTransition, match="standby does not become busy"):
        file.write(busy())
    assert file.read() == standby()


def test_a_writer_killed_half_way_leaves_the_old_word(file: words.WordFile) -> None:
    file.write(idle())
    with open(file.path, "r+b") as raw:
        data = bytearray(raw.read())
        unused = 64 if data[8] & 1 else 64 + (len(data) - 64) // 2
        data[unused : unused + 300] = os.urandom(300)
        raw.seek(0)
        raw.write(data)
    assert words.WordFile.open(file.path).read() == idle()


def test_a_word_without_a_whole_copy_says_so(file: words.WordFile) -> None:
    with open(file.path, "r+b") as raw:
        raw.seek(64)
        raw.write(os.urandom(os.stat(file.path).st_size - 64))
    with pytest.raises(words.DamagedWord, match="no copy"):
        file.read()


def test_readers_never_see_a_mixture(file: words.WordFile) -> None:
    """One process flips the word as fast as it can, and is killed; we read without a lock."""
    file.write(idle())

    def flip() -> None:
        own = words.WordFile.open(file.path)
        for number in range(10**9):
            with own.locked() as word:
                begun = leasing.begun(word, FENCE, f"{number}" * 8, float(number), 0)
                assert begun is not None
                own.write(begun._replace(client=f"{number}" * 8))
            with own.locked() as word:
                own.write(leasing.finished(word, float(number)))

    rng = random.Random(1)
    for _ in range(5):
        child = multiprocessing.get_context("fork").Process(target=flip)
        child.start()
        end = time.monotonic() + 0.1 + rng.random() / 10
        while time.monotonic() < end:
            word = file.read()
            assert word.state in ("idle", "busy")
            assert not word.job or word.job == word.client
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        with file.locked() as word:  # the kernel freed the lock
            file.write(leasing.finished(word, 0.0)._replace(job="", client=""))


def test_the_lock_excludes_other_processes_and_ends_with_them(file: words.WordFile) -> None:
    inside, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        own = words.WordFile.open(file.path)
        own.acquire()
        os.write(inside[1], b"!")
        os.read(go_on[0], 1)
        os._exit(0)
    os.read(inside[0], 1)
    os.kill(child, signal.SIGSTOP)
    assert not file.try_acquire()
    assert file.read() == standby()  # reading needs no lock
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert file.try_acquire()
    file.release()


def test_a_child_forked_inside_the_lock_does_not_keep_it(file: words.WordFile) -> None:
    file.acquire()
    child = os.fork()
    if child == 0:
        time.sleep(100)
        os._exit(0)
    file.release()
    try:
        assert words.WordFile.open(file.path).try_acquire()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_replying_is_seen_by_other_readers(file: words.WordFile) -> None:
    other = words.WordFile.open(file.path)
    assert not other.replying
    file.replying = True
    assert other.replying
    file.replying = False
    assert not other.replying


def test_files_of_a_worker_come_and_go_together(tmp_path: Path) -> None:
    folder = str(tmp_path)
    spec = WorkerSpec("w", "l", 0, "p", "n", "d", 1, folder, "lock", 0.5, 1.0, ("os",), {"A": "1"})
    words.write_spec(spec, ("0",))
    words.WordFile.create(words.word_path(folder, "w"), standby())
    words.code_dir(folder, "w")
    assert words.read_spec(folder, "w") == (spec, ("0",))
    words.remove_files(folder, "w")
    words.remove_files(folder, "w")
    assert os.listdir(folder) == []


def test_the_epoch_is_kept(tmp_path: Path) -> None:
    assert words.read_epoch(str(tmp_path)) == 0
    words.write_epoch(str(tmp_path), 4)
    assert words.read_epoch(str(tmp_path)) == 4


# ---------------------------------------------------------------- what a word may become


def test_a_job_begins_only_on_the_idle_word_of_its_own_lease() -> None:
    word = busy("job", 5.0)
    assert (word.state, word.job, word.since, word.deadline) == ("busy", "job", 120.0, 125.0)
    assert leasing.begun(word, FENCE, "other", 121.0, 0) is None
    assert leasing.begun(idle(), NEXT, "job", 121.0, 0) is None
    assert leasing.begun(standby(), Fence(0, 0), "job", 121.0, 0) is None
    assert leasing.begun(leasing.revoked(idle(), 1.0), FENCE, "job", 121.0, 0) is None


def test_a_cancel_that_comes_before_its_job_waits_for_it_and_for_no_other() -> None:
    word = leasing.marked(idle(), "job", "cancelled")
    mine = leasing.begun(word, FENCE, "job", 1.0, 0)
    other = leasing.begun(word, FENCE, "other", 1.0, 0)
    assert mine is not None and (mine.cancel, mine.cancel_reason) == ("job", "cancelled")
    assert other is not None and (other.cancel, other.cancel_reason) == ("", "")


def test_the_first_reason_to_stop_stays() -> None:
    word = leasing.marked(leasing.marked(busy(), "job", "timeout"), "job", "cancelled")
    assert word.cancel_reason == "timeout"


def test_a_finished_job_leaves_idle_revoked_or_what_the_warden_decided() -> None:
    assert leasing.finished(busy(), 9.0) == busy()._replace(state="idle", since=9.0)
    assert leasing.finished(leasing.draining(busy()), 9.0).state == "revoked"
    doomed = leasing.revoked(busy(), 8.0)
    assert leasing.finished(doomed, 9.0) == doomed


@pytest.mark.parametrize(
    ("word", "mode", "min_idle_s", "replying", "answer", "state"),
    [
        (idle(), "if_idle", 0.0, False, "gone", "revoked"),
        (idle(), "if_idle", 91.0, False, "busy", None),
        (idle(), "drain", 91.0, False, "gone", "revoked"),
        (idle(), "if_idle", 0.0, True, "busy", None),
        (idle(), "drain", 0.0, True, "draining", "revoked"),
        (busy(), "if_idle", 0.0, False, "busy", None),
        (busy(), "drain", 0.0, False, "draining", "draining"),
        (busy(), "stop", 0.0, False, "draining", "draining"),
        (leasing.draining(busy()), "if_idle", 0.0, False, "draining", None),
        (leasing.revoked(idle(), 1.0), "if_idle", 0.0, False, "gone", None),
        (leasing.revoked(idle(), 1.0), "drain", 0.0, True, "draining", None),
        (standby(), "drain", 0.0, False, "stale", None),
        (idle()._replace(fence=NEXT), "drain", 0.0, False, "stale", None),
    ],
)
def test_revocation(
    word: Word, mode: str, min_idle_s: float, replying: bool, answer: str, state: str | None
) -> None:
    got, new = leasing.revocation(
        word,
        replying,
        FENCE,
        mode,  # type: ignore[arg-type]
        min_idle_s,
        None,
        "",
        200.0,
    )
    assert (got, new.state if new else None) == (answer, state)


def test_a_move_gives_an_idle_word_to_a_sibling_in_one_step_and_can_be_repeated() -> None:
    answer, moved = leasing.revocation(idle(), False, FENCE, "if_idle", 0.0, NEXT, "b", 200.0)
    assert answer == "moved" and moved is not None
    assert (moved.state, moved.fence, moved.client) == ("idle", NEXT, "b")
    again = leasing.revocation(moved, False, FENCE, "if_idle", 0.0, NEXT, "b", 201.0)
    assert again == ("moved", None)
    assert leasing.revocation(busy(), False, FENCE, "if_idle", 0.0, NEXT, "b", 200.0)[0] == "busy"


# ---------------------------------------------------------------- the ring


def record(job: str) -> JobRecord:
    return JobRecord(job, "fn", "rl/grpo", "warm", "ok", "w", 1.0, 2.0, 3.0, 4.0)


def test_the_ring_keeps_the_last_records(tmp_path: Path) -> None:
    ring = Ring(str(tmp_path / "ring"), "w", create=True)
    for number in range(RING_RECORDS + 10):
        ring.append(Fence(1, number), record(f"job{number}"))
    found = Ring(ring.path, "w").read()
    assert found[0] == (Fence(1, 10), record("job10"))
    assert found[-1] == (Fence(1, RING_RECORDS + 9), record(f"job{RING_RECORDS + 9}"))
    assert len(found) == RING_RECORDS
    assert ring.mentions("job10") and not ring.mentions("job1")


def test_what_a_history_can_and_cannot_tell() -> None:
    done = [(FENCE, record("before")), (FENCE, record("job"))]
    history = History(leasing.finished(busy(), 1.0), done)
    assert history.settle(FENCE, "job", True)[:3] == (True, False, True)
    assert history.settle(FENCE, "before", True)[:3] == (True, False, True)
    assert history.settle(FENCE, "never", True)[:3] == (False, False, True)
    full = History(history.word, [(NEXT, record(str(i))) for i in range(RING_RECORDS)])
    assert full.settle(FENCE, "forgotten", True).started is None
    running = History(leasing.marked(busy(), "job", "timeout"), [])
    assert running.settle(FENCE, "job", True) == (True, True, True, "timeout", "")
    assert running.settle(FENCE, "job", False) == (True, False, False, "timeout", "")


def test_the_bell_needs_no_warden(tmp_path: Path) -> None:
    words.ring_bell(str(tmp_path))
    os.mkfifo(tmp_path / words.BELL)
    words.ring_bell(str(tmp_path))
    reader = os.open(tmp_path / words.BELL, os.O_RDONLY | os.O_NONBLOCK)
    with contextlib.closing(os.fdopen(reader, "rb", buffering=0)) as bell:
        words.ring_bell(str(tmp_path))
        assert bell.read(10) == b"!"
