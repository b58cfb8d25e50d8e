"""Lease words: one small mmapped file per worker, the truth about whose the worker is.

Written by the worker (its job begins, ends) and by the warden (revoke, regrant, cancel), both
on the same node and only under ``flock``; read by anybody without a lock. No Ray here, and no
decision: ``leasing`` says what a word may become, ``WordFile`` stores it.

Theory of operation. The file holds two copies of the word and a counter; the counter's lowest
bit says which copy is valid. A writer fills the other copy and then bumps the counter, so that
a writer killed half-way leaves the old word whole, and a reader never waits for a writer that
was stopped. A checksum in each copy catches a reader that was overtaken twice.

``flock`` belongs to the open file description: a child forked while the worker holds the lock
shares it, and the worker's explicit unlock frees it for both. Only if the worker dies inside
can such a child keep it; the warden changes words of dead workers without the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import shutil
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict
from os import getpid
from typing import Final
from zlib import crc32

from firepool_ray.core.model import Fence
from firepool_ray.errors import IllegalTransition
from firepool_ray.runtime.leasing import EDGES
from firepool_ray.runtime.protocol import Word, WordState, WorkerSpec
from firepool_ray.runtime.records import ring_path

#: A FIFO in the words' folder: a byte in it says that a draining lease has ended.
BELL: Final = "bell"
_EPOCH: Final = "epoch"

_STATES: Final[tuple[WordState, ...]] = ("standby", "idle", "busy", "draining", "revoked")
_CODE_OF: Final = {state: code for code, state in enumerate(_STATES)}
_MAGIC: Final = b"FPWORD1\0"
_COUNTER: Final = struct.Struct("@Q")  # native: stored by one aligned move
_COUNTER_AT: Final = 8
_REPLYING_AT: Final = 16
_FIRST_COPY_AT: Final = 64
_SUM: Final = struct.Struct("@I")
_TEXT_BYTES: Final = {
    "queue": 64,
    "caller": 192,
    "client": 96,
    "deps": 96,
    "job": 96,
    "cancel": 96,
    "cancel_reason": 16,
}
_BODY: Final = struct.Struct("@QQQQQQdd" + "".join(f"{size}s" for size in _TEXT_BYTES.values()))
_COPY_BYTES: Final = (_SUM.size + _BODY.size + 63) // 64 * 64
_FILE_BYTES: Final = _FIRST_COPY_AT + 2 * _COPY_BYTES
_READ_TRIES: Final = 1000


class DamagedWord(Exception):
    """The file is no lease word, or none of its copies is whole."""


def words_dir(base_dir: str, node_id: str) -> str:
    """Where a node's words lie; ``base_dir`` is Ray's ``<temp dir>/<session name>``."""
    return os.path.join(base_dir, "firepool", node_id[:16])


def word_path(folder: str, worker: str) -> str:
    return os.path.join(folder, f"{worker}.word")


def spec_path(folder: str, worker: str) -> str:
    return os.path.join(folder, f"{worker}.json")


def _code_path(folder: str, worker: str) -> str:
    return os.path.join(folder, f"{worker}.code")


def code_dir(folder: str, worker: str) -> str:
    """Where a worker keeps the zips of its caller's code; made if it is missing."""
    path = _code_path(folder, worker)
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def write_spec(spec: WorkerSpec, gpu_ids: tuple[str, ...]) -> None:
    """Beside the word, for a warden that adopts the worker."""
    text = json.dumps({"spec": asdict(spec), "gpu_ids": gpu_ids})
    _replace(spec_path(spec.words_dir, spec.worker), text)


def read_spec(folder: str, worker: str) -> tuple[WorkerSpec, tuple[str, ...]]:
    """Raises ``OSError`` or ``ValueError``."""
    with open(spec_path(folder, worker)) as file:
        found = json.load(file)
    fields = found["spec"]
    fields["preload"] = tuple(fields["preload"])
    return WorkerSpec(**fields), tuple(found["gpu_ids"])


def remove_files(folder: str, worker: str) -> None:
    """The word goes last: a worker is known by it."""
    shutil.rmtree(_code_path(folder, worker), ignore_errors=True)
    for path in (
        ring_path(folder, worker),
        spec_path(folder, worker),
        word_path(folder, worker),
    ):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def read_epoch(folder: str) -> int:
    """The highest controller epoch this node has heard of; 0 for none."""
    try:
        with open(os.path.join(folder, _EPOCH)) as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


def write_epoch(folder: str, epoch: int) -> None:
    """For the node's warden only."""
    _replace(os.path.join(folder, _EPOCH), str(epoch))


def _replace(path: str, text: str) -> None:
    draft = f"{path}.{getpid()}.new"
    with open(draft, "w") as file:
        file.write(text)
    os.replace(draft, path)


def ring_bell(folder: str) -> None:
    """Have the warden look at its words now; without a warden nothing happens."""
    with contextlib.suppress(OSError):
        fd = os.open(os.path.join(folder, BELL), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, b"!")
        finally:
            os.close(fd)


def check_texts(**texts: str) -> None:
    """Raise ``ValueError`` for a text that does not fit: cut short, two callers could be one."""
    for name, text in texts.items():
        room = _TEXT_BYTES[name] - 1
        size = len(text.encode())
        if size > room or "\0" in text:
            raise ValueError(f"{name} {text[:40]!r}... takes {size} bytes; {room} is the most")


class WordFile:
    """One word on disk. Not thread-safe: each process changes a word from one thread only."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._map = mmap.mmap(fd, _FILE_BYTES)
        #: The last copy read or written and its word, so that an unchanged word is parsed once.
        #: One tuple: a signal handler may read in the middle of a read.
        self._known: tuple[bytes, Word] | None = None

    @classmethod
    def create(cls, path: str, word: Word) -> WordFile:
        """A new file; it appears under its name only when it is whole."""
        draft = f"{path}.{getpid()}.new"
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, _FILE_BYTES)
            file = cls(path, fd)
            file.write(word)
            file._map[: len(_MAGIC)] = _MAGIC
            os.rename(draft, path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        return file

    @classmethod
    def open(cls, path: str) -> WordFile:
        """Raises ``DamagedWord`` or ``OSError``."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != _FILE_BYTES:
                raise DamagedWord(f"{path} has {os.fstat(fd).st_size} bytes, not {_FILE_BYTES}")
            file = cls(path, fd)
            if file._map[: len(_MAGIC)] != _MAGIC:
                raise DamagedWord(f"{path} is not a lease word")
        except BaseException:
            os.close(fd)
            raise
        return file

    def close(self) -> None:
        self._map.close()
        os.close(self._fd)

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def release(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def locked(self) -> Iterator[Word]:
        self.acquire()
        try:
            yield self.read()
        finally:
            self.release()

    def read(self) -> Word:
        """The word as it is now; needs no lock. Raises ``DamagedWord``."""
        for _ in range(_READ_TRIES):
            (counter,) = _COUNTER.unpack_from(self._map, _COUNTER_AT)
            at = _FIRST_COPY_AT + (counter & 1) * _COPY_BYTES
            copy = self._map[at : at + _COPY_BYTES]
            known = self._known
            if known is not None and copy == known[0]:
                return known[1]
            body = copy[_SUM.size :]
            if _SUM.unpack_from(copy)[0] == crc32(body):
                word = _parse(body)
                self._known = (copy, word)
                return word
            time.sleep(0)
        raise DamagedWord(f"{self.path}: no copy of the lease word is whole")

    def write(self, word: Word) -> None:
        """Store the word. The caller holds the lock (or is the only one who can write).

        Raises ``IllegalTransition`` for a change of state that ``EDGES`` does not know.
        """
        known = self._known
        if known is not None:
            old = known[1].state
            if old != word.state and (old, word.state) not in EDGES:
                raise IllegalTransition(f"{self.path}: {old} does not become {word.state}")
        body = _build(word)
        copy = _SUM.pack(crc32(body)) + body
        (counter,) = _COUNTER.unpack_from(self._map, _COUNTER_AT)
        counter += 1
        at = _FIRST_COPY_AT + (counter & 1) * _COPY_BYTES
        self._map[at : at + _COPY_BYTES] = copy
        _COUNTER.pack_into(self._map, _COUNTER_AT, counter)
        self._known = (copy, word)

    @property
    def replying(self) -> bool:
        """The last job's outcome is still on its way into Ray: the process must not be killed."""
        return self._map[_REPLYING_AT] != 0

    @replying.setter
    def replying(self, value: bool) -> None:
        # One byte with one writer, the worker: no lock.
        self._map[_REPLYING_AT] = 1 if value else 0


def _build(word: Word) -> bytes:
    body = _BODY.pack(
        _CODE_OF[word.state],
        word.epoch,
        word.fence[0],
        word.fence[1],
        word.pid,
        word.pid_start,
        word.since,
        word.deadline,
        word.queue.encode(),
        word.caller.encode(),
        word.client.encode(),
        word.deps.encode(),
        word.job.encode(),
        word.cancel.encode(),
        word.cancel_reason.encode(),
    )
    return body.ljust(_COPY_BYTES - _SUM.size, b"\0")


def _parse(body: bytes) -> Word:
    code, epoch, fence_epoch, number, pid, start, since, deadline, *texts = _BODY.unpack_from(body)
    queue, caller, client, deps, job, cancel, reason = (t.rstrip(b"\0").decode() for t in texts)
    return Word(
        _STATES[code],
        epoch,
        Fence(fence_epoch, number),
        pid,
        start,
        since,
        deadline,
        queue,
        caller,
        client,
        deps,
        job,
        cancel,
        reason,
    )
