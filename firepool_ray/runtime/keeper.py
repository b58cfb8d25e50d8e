"""Keeps watch over a node's workers: reads their words, enforces deadlines, ends processes.

Used by the warden, whose orders it carries out; all on one event loop. What blocks (killing
trees, reading /proc) runs in threads. Nothing here knows of epochs, and nothing chooses whom to
revoke or retire.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from firepool_ray.core.model import Fence
from firepool_ray.runtime import leasing, processes, words
from firepool_ray.runtime.guard import STOP_SIGNAL
from firepool_ray.runtime.news import NewsLog, observe
from firepool_ray.runtime.protocol import JobRecord, Word
from firepool_ray.runtime.sweep import sweep
from firepool_ray.runtime.ward import History, Ward, WordStuck

_log = logging.getLogger(__name__)

#: From a stop signal to the end of the process, where nobody asked for another grace.
GRACE_S = 2.0
#: How long a worker may hold its word's lock before it counts as hung.
WORD_PATIENCE_S = 10.0
#: Records of retired workers that are kept for ``firepool explain``.
RECORDS_KEPT = 4096
#: Retired workers whose jobs can still be settled.
GONE_KEPT = 512

_FOLDER_S = 5.0
_TREES_S = 1.0
#: Between the end of a worker's last job and its kill, so that the reply has left the process.
_REPLY_LINGER_S = 0.02
_REPLY_MOST_S = 10.0
#: Then all its threads must be at rest at so many looks in a row. Threads that user code left
#: running never are: they are not waited for beyond this after the job's end.
_REST_LOOKS, _REST_LOOK_S = 3, 0.003
_REST_MOST_S = 1.0
_KILL_WAIT_S = 5.0
_SIGNAL_AGAIN_S = 0.1
_RAY_WAIT_S = 0.3


class Keeper:
    """The workers of one node's words folder. Starts its watches on the running event loop.

    ``end_actor`` has Ray end the actor behind a handle, without waiting.
    """

    def __init__(
        self, folder: str, poll_s: float, linger_s: float, end_actor: Callable[[Any], None]
    ) -> None:
        self.folder = folder
        self._end_actor = end_actor
        self.wards: dict[str, Ward] = {}
        self.gone: dict[str, History] = {}  #: oldest first
        self.old_records: deque[JobRecord] = deque(maxlen=RECORDS_KEPT)
        #: A later warden's numbers are greater, so that a cursor never hides its news.
        self.news = NewsLog(time.time_ns() // 1000)
        self._heard = asyncio.Event()
        self._poll_s = poll_s
        self._linger_s = linger_s
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()
        self._open_bell()
        self.adopt_folder()
        self.spawn(self._watch_words())
        self.spawn(self._watch_folder())
        self.spawn(self._watch_trees())

    # ------------------------------------------------------------ who is there

    def adopt_folder(self) -> None:
        """Take over every word in the folder that is not known yet."""
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".word"):
                with contextlib.suppress(OSError, ValueError, words.DamagedWord):
                    self.adopt(name.removesuffix(".word"))

    def adopt(self, worker: str) -> Ward:
        """Watch this worker. Raises ``OSError``, ``ValueError`` or ``DamagedWord``."""
        known = self.wards.get(worker)
        if known is not None:
            return known
        ward = self.wards[worker] = Ward(self.folder, worker)
        word = ward.word()
        if ward.process is None:
            self._note_exit(ward)
            return ward
        self._loop.add_reader(ward.process.fd, self._on_exit, ward)
        if word.state in leasing.RUNNING and word.cancel == word.job:
            # A predecessor's order whose grace it did not see through.
            self._signal_stop(ward, word.job, word.cancel_reason, GRACE_S)
        self._wake.set()
        return ward

    def note_if_ended(self, ward: Ward) -> None:
        """See an end that the event loop has not delivered yet."""
        if not ward.exited and ward.process is not None and ward.process.ended():
            self._on_exit(ward)

    def _on_exit(self, ward: Ward) -> None:
        if ward.process is not None:
            self._loop.remove_reader(ward.process.fd)
        if not ward.exited:
            ward.exited = True
            self._note_exit(ward)

    def _note_exit(self, ward: Ward) -> None:
        ward.end = ward.doom or processes.exit_text(ward.pid, ward.pid_start)
        if ward.retiring is None:  # else the answer to ``retire`` says so
            self.tell("exited", ward, ward.word(), ward.end)

    def forget(self, ward: Ward) -> None:
        """The worker is gone and swept. What is known of its jobs stays for a while."""
        if self.wards.get(ward.worker) is not ward:
            return
        del self.wards[ward.worker]
        if ward.process is not None:
            self._on_exit(ward)  # the sweep may have seen its end before the event loop did
        ward.close()
        history = ward.history()
        self.old_records.extend(record for _, record in history.records)
        self.gone[ward.worker] = history
        while len(self.gone) > GONE_KEPT:
            del self.gone[next(iter(self.gone))]
        words.remove_files(self.folder, ward.worker)

    # ------------------------------------------------------------ news

    def tell(self, kind: Any, ward: Ward, word: Word, detail: str = "") -> None:
        since = time.monotonic() if kind == "exited" else word.since
        self.news.add(kind, ward.worker, word.fence, since, detail)
        self._heard.set()
        self._heard = asyncio.Event()

    def tell_orphaned(self) -> None:
        """Nothing started on this node any more, and Ray ends what still runs within seconds."""
        self.news.add("orphaned", "", Fence(0, 0), time.monotonic())
        self._heard.set()
        self._heard = asyncio.Event()

    async def wait_for_news(self, timeout_s: float) -> None:
        heard = self._heard
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(heard.wait(), timeout_s)

    # ------------------------------------------------------------ watches

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("warden task failed", exc_info=task.exception())

    def _open_bell(self) -> None:
        path = os.path.join(self.folder, words.BELL)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Opened for writing too: a FIFO without writers would read as ended all the time.
        self._bell = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._loop.add_reader(self._bell, self._on_bell)

    def _on_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell, 4096)
        self._wake.set()

    def wake(self) -> None:
        """Look at the words now."""
        self._wake.set()

    async def _watch_words(self) -> None:
        while True:
            self._wake.clear()
            now = time.monotonic()
            due = now + self._poll_s
            for ward in list(self.wards.values()):
                if not ward.exited:
                    try:
                        due = min(due, self._look_at(ward, now))
                    except words.DamagedWord as error:
                        self._condemn(ward, str(error))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.001, due - time.monotonic()))

    def _look_at(self, ward: Ward, now: float) -> float:
        """Report what has changed; returns when the word should be looked at again."""
        word = ward.word()
        for kind in observe(ward.sight, word, ward.file.replying, now, self._linger_s):
            self.tell(kind, ward, word)
        if word.state in leasing.RUNNING and word.deadline > 0 and word.cancel != word.job:
            if now < word.deadline:
                return word.deadline
            if ward.overdue != word.job:
                ward.overdue = word.job
                self.spawn(self._end_overdue(ward, word.job))
        elif word.state == "idle" and ward.sight.told != "idle":
            return max(now, word.since + self._linger_s)
        return now + self._poll_s

    def _condemn(self, ward: Ward, reason: str) -> None:
        if not ward.doom:
            _log.error("worker %s is killed: %s", ward.worker, reason)
            self.spawn(self.kill(ward, reason))

    async def _watch_folder(self) -> None:
        while True:
            await asyncio.sleep(_FOLDER_S)
            self.adopt_folder()

    async def _watch_trees(self) -> None:
        """Remember who descends from whom, since a dead worker's orphans move elsewhere."""
        while True:
            await asyncio.sleep(_TREES_S)
            busy = [w for w in self.wards.values() if not w.exited and w.word().job]
            if not busy:
                continue
            table = await asyncio.to_thread(processes.table)
            for ward in busy:
                below = {(p.pid, p.start) for p in processes.descendants(ward.pid, table)}
                alive = {(p.pid, p.start) for p in table.values()}
                ward.descendants = (ward.descendants & alive) | below

    # ------------------------------------------------------------ stopping and ending

    async def stop_job(self, ward: Ward, job: str, reason: str, grace_s: float) -> bool:
        """Mark the job and signal it; if it still runs after the grace, the worker is killed.

        False if the worker has ended that job or is at another. A job that has not arrived yet
        is marked too, and will not run. Raises ``WordStuck``.
        """

        def mark(word: Word) -> Word | None:
            if word.state in leasing.RUNNING and word.job == job:
                return leasing.marked(word, job, reason)
            if word.state == "idle" and not self._has_run(ward, word, job):
                return leasing.marked(word, job, reason)
            return None

        if ward.exited:
            return False
        word = await ward.change(mark, WORD_PATIENCE_S)
        if word is None or ward.exited:
            return False
        if word.state in leasing.RUNNING:
            self._signal_stop(ward, job, word.cancel_reason, grace_s)
        return True

    async def _end_overdue(self, ward: Ward, job: str) -> None:
        try:
            await self.stop_job(ward, job, "timeout", GRACE_S)
        except WordStuck as error:
            self._condemn(ward, str(error))

    def _has_run(self, ward: Ward, word: Word, job: str) -> bool:
        return word.job == job or ward.ring.mentions(job)

    def _signal_stop(self, ward: Ward, job: str, reason: str, grace_s: float) -> None:
        ward.signal(STOP_SIGNAL)
        if ward.stopping != job:
            ward.stopping = job
            self.spawn(self._see_through(ward, job, reason, grace_s))

    async def _see_through(self, ward: Ward, job: str, reason: str, grace_s: float) -> None:
        def give_up(word: Word) -> Word | None:
            runs = word.state in leasing.RUNNING and word.job == job and word.cancel == job
            return leasing.revoked(word, time.monotonic()) if runs else None

        end = time.monotonic() + grace_s
        while (left_s := end - time.monotonic()) > 0:
            await asyncio.sleep(min(_SIGNAL_AGAIN_S, left_s))
            word = ward.word()
            if ward.exited or word.job != job or word.state not in leasing.RUNNING:
                return
            ward.signal(STOP_SIGNAL)  # the last one may have been swallowed, or met an import
        try:
            left = await ward.change(give_up, 1.0)
        except WordStuck:
            left = ward.word()
        if left is not None and not ward.exited:
            await self.kill(ward, f"its job {job} did not stop within {grace_s:g} s ({reason})")

    async def kill(self, ward: Ward, why: str) -> None:
        """End the process and everything below it. The word must be revoked (or stuck) before."""
        ward.doom = ward.doom or why
        await self._ask_ray(ward)
        left = await asyncio.to_thread(
            processes.kill_tree, ward.pid, ward.pid_start, _KILL_WAIT_S, frozenset(ward.descendants)
        )
        if left:
            _log.error("worker %s: processes %s do not end", ward.worker, [p.pid for p in left])

    async def interrupt(self, ward: Ward, why: str) -> None:
        """End the process if a job runs in it. One that holds its word's lock ends all the same:
        its node goes in a moment.
        """

        def decide(word: Word) -> Word | None:
            runs = word.state in leasing.RUNNING
            return leasing.revoked(word, time.monotonic()) if runs else None

        with contextlib.suppress(WordStuck):
            if ward.exited or await ward.change(decide, 1.0) is None:
                return
        await self.kill(ward, why)

    async def revoke_standby(self, ward: Ward) -> None:
        with contextlib.suppress(WordStuck):
            await ward.change(
                lambda word: (
                    leasing.revoked(word, time.monotonic()) if word.state == "standby" else None
                ),
                1.0,
            )

    async def _ask_ray(self, ward: Ward) -> None:
        """Let Ray end the process first, so that it counts as intended and nobody is alarmed.

        What lives below it ends before, while it still shows in the tree.
        """
        if ward.handle is None or ward.exited or ward.process is None:
            return
        await asyncio.to_thread(processes.kill_below, ward.pid, ward.pid_start, _KILL_WAIT_S)
        self._end_actor(ward.handle)
        await asyncio.to_thread(ward.process.ended, _RAY_WAIT_S)

    async def retire(self, ward: Ward, deadline_s: float) -> str:
        """Kill, sweep and forget a revoked worker; "" once that is done, else why not."""
        deadline = time.monotonic() + deadline_s
        await self._let_reply(ward)
        word = ward.word()
        ward.doom = ward.doom or "it was retired"
        await self._ask_ray(ward)
        reason = await asyncio.to_thread(
            sweep,
            ward.worker,
            ward.pid,
            ward.pid_start,
            ward.file.path,
            known=frozenset(ward.descendants),
            spare={other.pid for other in self.wards.values() if other is not ward} | {os.getpid()},
            device_lock=ward.spec.device_lock_path if word.fence != Fence(0, 0) else "",
            gpu_ids=ward.gpu_ids,
            deadline=deadline,
        )
        if not reason:
            self.forget(ward)
        return reason

    async def _let_reply(self, ward: Ward) -> None:
        """Its last job's outcome may still be on its way into Ray and out of the process."""
        patience = time.monotonic() + _REPLY_MOST_S
        while not ward.exited and ward.file.replying and time.monotonic() < patience:
            await asyncio.sleep(0.002)
        word = ward.word()
        if word.job and not ward.exited:
            rested_since = ward.rested_since or word.since
            await asyncio.sleep(max(0.0, rested_since + _REPLY_LINGER_S - time.monotonic()))
            await self._let_rest(ward, rested_since + _REST_MOST_S)

    async def _let_rest(self, ward: Ward, until: float) -> None:
        """Ray sends the reply from a thread of its own, which may still wait for a processor."""
        looks = 0
        while looks < _REST_LOOKS and not ward.exited and time.monotonic() < until:
            looks = looks + 1 if processes.is_at_rest(ward.pid) else 0
            await asyncio.sleep(_REST_LOOK_S)
