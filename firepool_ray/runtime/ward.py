"""One worker as its warden sees it: the open word, ring and process, and one way to change it.

Used by the warden, on its event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from firepool_ray.core.model import Fence
from firepool_ray.runtime import leasing, words
from firepool_ray.runtime.news import Sight
from firepool_ray.runtime.processes import Handle
from firepool_ray.runtime.protocol import JobRecord, Settled, Word, WorkerSpec
from firepool_ray.runtime.records import RING_RECORDS, Ring, ring_path


class WordStuck(Exception):
    """The worker holds its word's lock for too long: it was stopped, or hangs."""


class History(NamedTuple):
    """What can be said of a worker's jobs, now or after it is gone."""

    word: Word
    records: list[tuple[Fence, JobRecord]]
    end: str = ""  #: how its process ended, or why it is being ended

    def settle(self, fence: Fence, job: str, alive: bool) -> Settled:
        word = self.word
        stopped = word.cancel_reason if word.cancel == job else ""
        if word.job == job:
            running = alive and word.state in leasing.RUNNING
            return Settled(True, running, alive, stopped, self.end)
        if any(record.job == job for _, record in self.records):
            return Settled(True, False, alive, stopped, self.end)
        forgotten = len(self.records) >= RING_RECORDS and self.records[0][0] > fence
        return Settled(None if forgotten else False, False, alive, stopped, self.end)


class Ward:
    """Opens a worker's files; raises ``OSError``, ``ValueError`` or ``DamagedWord``."""

    def __init__(self, folder: str, worker: str) -> None:
        self.worker = worker
        self.spec: WorkerSpec
        self.spec, self.gpu_ids = words.read_spec(folder, worker)
        self.file = words.WordFile.open(words.word_path(folder, worker))
        try:
            self.ring = Ring(ring_path(folder, worker), worker)
        except BaseException:
            self.file.close()
            raise
        word = self.file.read()
        self.pid, self.pid_start = word.pid, word.pid_start
        self.process = Handle.open(word.pid, word.pid_start)
        self.exited = self.process is None
        self.handle: Any = None  #: Ray actor handle, where known
        self.sight = Sight()
        #: (pid, start) of everything seen below the worker.
        self.descendants: set[tuple[int, int]] = set()
        self.doom = ""  #: why the warden kills it
        self.end = ""  #: how its process ended, once it has
        self.overdue = ""  #: the job whose deadline was noticed
        self.stopping = ""  #: the job that was signalled and has a grace
        self.retiring: asyncio.Task[str] | None = None
        self.rested_since = 0.0  #: end of its last job, where it was revoked idle
        self._last: History | None = None  #: after ``close``

    def word(self) -> Word:
        return self._last.word if self._last is not None else self.file.read()

    async def change(self, decide: Callable[[Word], Word | None], patience_s: float) -> Word | None:
        """Replace the word by what ``decide`` makes of it; None (nothing changed) if that is None.

        None, too, for a worker that is forgotten. Raises ``WordStuck``. The word of a dead worker
        needs no lock: a child that it forked may still hold that, and only the warden writes.
        """
        deadline = time.monotonic() + patience_s
        pause = 0.0005
        while not self.exited and self._last is None:
            if self.file.try_acquire():
                try:
                    return self._replace(decide)
                finally:
                    self.file.release()
            if self.process is None or self.process.ended():
                break
            if time.monotonic() > deadline:
                raise WordStuck(f"worker {self.worker} holds its lease word for {patience_s} s")
            await asyncio.sleep(pause)
            pause = min(0.02, 2 * pause)
        return self._replace(decide)

    def _replace(self, decide: Callable[[Word], Word | None]) -> Word | None:
        if self._last is not None:
            return None
        old = self.file.read()
        new = decide(old)
        if new is not None and new != old:
            self.file.write(new)
            if (old.state, new.state) == ("idle", "revoked"):
                self.rested_since = old.since
        return new

    def signal(self, number: int) -> None:
        if self.process is not None and not self.exited:
            self.process.signal(number)

    def history(self) -> History:
        return self._last or History(self.file.read(), self.ring.read(), self.end or self.doom)

    def close(self) -> None:
        """What is known stays readable."""
        self._last = self.history()
        self.exited = True
        if self.process is not None:
            self.process.close()
        self.ring.close()
        self.file.close()
