"""The warden: one helper actor per node that holds lanes.

Called by the controller (orders carry its epoch; a lower one than the highest seen is refused),
by clients (cancel, settle) and by workers (register). It alone revokes leases, signals and ends
processes, and it runs no user code. All that must survive it lies in the words' folder: a
successor adopts the words by pid and start time.

Every order may be repeated, since its answer may be lost: the second time it answers the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import ray

from firepool_ray.core.actions import RevokeMode
from firepool_ray.core.events import RevokeAnswer
from firepool_ray.core.model import Fence
from firepool_ray.errors import StaleEpoch
from firepool_ray.runtime import gpu, leaked, leasing, processes, words
from firepool_ray.runtime.keeper import GRACE_S, WORD_PATIENCE_S, Keeper
from firepool_ray.runtime.protocol import (
    NAMESPACE,
    JobRecord,
    Settled,
    WardenState,
    WardenWorker,
    Word,
    WordNews,
    WorkerSpec,
    worker_actor_name,
)
from firepool_ray.runtime.ward import Ward, WordStuck

#: A poll for news is answered after this at the latest.
WATCH_S = 10.0
_HELLO_SWEEP_S = 2.0


class Warden:
    """An async actor. ``base_dir`` is Ray's session folder unless a test says otherwise."""

    def __init__(
        self, node_id: str, base_dir: str = "", poll_s: float = 0.05, linger_s: float = 0.02
    ) -> None:
        self._node_id = node_id
        self._dir = words.words_dir(base_dir or _session_dir(), node_id)
        os.makedirs(self._dir, mode=0o700, exist_ok=True)
        self._epoch = words.read_epoch(self._dir)
        self._keeper = Keeper(self._dir, poll_s, linger_s, _end_actor)
        self._raylet = processes.parent_named("raylet")
        if self._raylet is not None:
            asyncio.get_running_loop().add_reader(self._raylet.fd, self._on_orphaned, self._raylet)

    def __repr__(self) -> str:
        return f"FirepoolWarden(node {self._node_id[:12]})"

    def _on_orphaned(self, raylet: processes.Handle) -> None:
        """The processes of a node whose raylet was killed end one by one, and look healthy until
        then: a job lost with the first would be sent to the next. From here on none may finish.
        """
        asyncio.get_running_loop().remove_reader(raylet.fd)
        for ward in self._keeper.wards.values():
            ward.signal(signal.SIGKILL)
        self._keeper.tell_orphaned()

    def _check(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise StaleEpoch(epoch, self._epoch)
        if epoch > self._epoch:
            words.write_epoch(self._dir, epoch)
            self._epoch = epoch

    # ------------------------------------------------------------ the controller's orders

    async def hello(self, epoch: int) -> WardenState:
        """A controller takes charge: everything this node holds. Its ``watch`` goes on from here.

        Every word carries the new epoch afterwards, so that no worker obeys an older controller.
        """
        self._check(epoch)
        keeper = self._keeper
        keeper.adopt_folder()
        await asyncio.gather(*(self._greet(ward, epoch) for ward in list(keeper.wards.values())))
        self._check(epoch)
        keeper.news.clear()
        workers, now = [], time.monotonic()
        for ward in list(keeper.wards.values()):
            word = ward.word()
            told = {"idle": "idle", "busy": "busy", "draining": "busy", "revoked": "ended"}
            ward.sight.tell(word, told.get(word.state, ""), now)  # type: ignore[arg-type]
            workers.append(
                WardenWorker(
                    ward.spec,
                    ward.handle,
                    word,
                    max(0.0, now - word.since),
                    ward.gpu_ids,
                    not ward.exited,
                )
            )
        cursor = keeper.news.last
        for ward in keeper.wards.values():
            if ward.exited:
                keeper.tell("exited", ward, ward.word(), ward.doom or "it ended before")
        return WardenState(self._node_id, _node_ip(), self._dir, tuple(workers), cursor)

    async def _greet(self, ward: Ward, epoch: int) -> None:
        def bump(word: Word) -> Word:
            return word._replace(epoch=max(word.epoch, epoch))

        try:
            await ward.change(bump, WORD_PATIENCE_S / 5)
        except WordStuck as error:
            await self._keeper.kill(ward, str(error))
        self._keeper.note_if_ended(ward)
        if not ward.exited and ward.handle is None:
            spec = ward.spec
            name = worker_actor_name(spec.profile, spec.lane, spec.slot, spec.worker)
            ward.handle = await asyncio.to_thread(_find_actor, name)
            if ward.handle is None:  # a process without its actor can serve nobody
                await ward.change(lambda word: leasing.revoked(word, time.monotonic()), 1.0)
                await self._keeper.kill(ward, f"its actor {name} is gone")
        if ward.exited or ward.handle is None:
            await self._retire(ward, _HELLO_SWEEP_S)

    async def register(
        self, epoch: int, spec: WorkerSpec, handle: Any, gpu_ids: tuple[str, ...]
    ) -> None:
        """A worker has written its word and wants to be watched. Refused under an old epoch."""
        if epoch < self._epoch:
            raise StaleEpoch(epoch, self._epoch)
        ward = self._keeper.adopt(spec.worker)
        ward.spec, ward.handle, ward.gpu_ids = spec, handle, gpu_ids

    async def revoke(
        self,
        epoch: int,
        worker: str,
        fence: Fence,
        mode: RevokeMode,
        min_idle_s: float = 0.0,
        successor: Fence | None = None,
        client: str = "",
    ) -> RevokeAnswer:
        """Take a lease away: see ``RevokeLease`` for the modes.

        ``gone``: revoked now (or before); ``moved``: idle under ``successor``; ``draining``: news
        "ended" follows; ``busy``: nothing changed; ``stale``: another lease; ``dead``: no process.
        """
        self._check(epoch)
        ward = self._keeper.wards.get(worker)
        if ward is None or ward.exited or ward.doom:
            return "dead"
        answer: RevokeAnswer = "stale"

        def decide(word: Word) -> Word | None:
            nonlocal answer
            replying, now = ward.file.replying, time.monotonic()
            answer, new = leasing.revocation(
                word, replying, fence, mode, min_idle_s, successor, client, now
            )
            return new

        try:
            word = await ward.change(decide, WORD_PATIENCE_S)
        except WordStuck as error:
            if mode == "if_idle":
                return "busy"
            await self._keeper.kill(ward, str(error))
            return "dead"
        if ward.exited:
            return "dead"
        word = word or ward.word()
        if answer == "gone":
            ward.sight.tell(word, "ended", time.monotonic())
        elif answer == "busy":
            ward.sight.tell(word, "busy", time.monotonic())
        if mode == "stop" and word.state == "draining" and word.fence == fence:
            with contextlib.suppress(WordStuck):
                await self._keeper.stop_job(ward, word.job, "client_lost", GRACE_S)
        return answer

    async def regrant(
        self, epoch: int, worker: str, revoked: Fence, fence: Fence, client: str
    ) -> bool:
        """A revoked worker back to idle under a new fence; False if it cannot serve any more."""
        self._check(epoch)
        ward = self._keeper.wards.get(worker)
        if ward is None or ward.exited or ward.doom:
            return False

        def decide(word: Word) -> Word | None:
            if word.fence == fence:
                return word
            if word.state != "revoked" or word.fence != revoked or fence <= revoked:
                return None
            return leasing.regranted(word, fence, client, time.monotonic())

        try:
            return await ward.change(decide, WORD_PATIENCE_S) is not None and not ward.exited
        except WordStuck:
            return False

    async def retire(self, epoch: int, worker: str, deadline_s: float = 10.0) -> str:
        """Kill and sweep a revoked or unused worker; "" when all is gone, else what is left.

        Raises ``ValueError`` while its word holds a lease: nothing is killed before it is revoked.
        """
        self._check(epoch)
        ward = self._keeper.wards.get(worker)
        if ward is None:
            self._keeper.adopt_folder()
            ward = self._keeper.wards.get(worker)
            if ward is None:
                return ""
        if not ward.exited:
            await self._keeper.revoke_standby(ward)
            state = ward.word().state
            if state != "revoked" and not ward.exited:
                raise ValueError(f"worker {worker} is {state}: revoke its lease before")
        return await self._retire(ward, deadline_s)

    async def _retire(self, ward: Ward, deadline_s: float) -> str:
        """At most one sweep of a worker at a time; whoever asks again waits for the same."""
        if ward.retiring is None or ward.retiring.done():
            ward.retiring = self._keeper.spawn(self._keeper.retire(ward, deadline_s))
        return await asyncio.shield(ward.retiring)

    async def interrupt(self, epoch: int, why: str) -> None:
        """The node goes in a moment: end the jobs that still run, while their end can be told."""
        self._check(epoch)
        keeper = self._keeper
        await asyncio.gather(*(keeper.interrupt(ward, why) for ward in list(keeper.wards.values())))

    async def end_idle(self, epoch: int) -> int:
        """A start takes long: end what may hold its place for nobody. Says how many it ended."""
        self._check(epoch)
        return await asyncio.to_thread(leaked.end_idle, self._raylet.pid) if self._raylet else 0

    async def end_worker(self, worker: str, fence: Fence | None, epoch: int = 0) -> str:
        """End of the pool: revoke whatever holds, kill and sweep. Answers as ``retire``."""
        if epoch:
            self._check(epoch)
        ward = self._keeper.wards.get(worker)
        if ward is None:
            return ""

        def decide(word: Word) -> Word | None:
            matches = fence is None or word.fence in (fence, Fence(0, 0))
            return leasing.revoked(word, time.monotonic()) if matches else None

        with contextlib.suppress(WordStuck):
            if await ward.change(decide, 1.0) is None:
                return f"worker {worker} is under another lease than {fence}"
        return await self._retire(ward, GRACE_S)

    async def watch(self, epoch: int, cursor: int) -> tuple[int, list[WordNews]]:
        """News since ``cursor`` (0: all), as soon as there are any; [] after 10 s."""
        deadline = time.monotonic() + WATCH_S
        while True:
            self._check(epoch)
            now = time.monotonic()
            news = self._keeper.news.after(cursor, now)
            if news or now >= deadline:
                return self._keeper.news.last, news
            await self._keeper.wait_for_news(deadline - now)

    # ------------------------------------------------------------ calls of clients

    async def cancel(
        self, worker: str, job: str, reason: str = "cancelled", grace_s: float = GRACE_S
    ) -> bool:
        """Stop a job. True: it ends as stopped (it may be killed for that after ``grace_s``).

        False: the worker has ended this job already, or does not exist.
        """
        ward = self._keeper.wards.get(worker)
        if ward is None:
            return False
        try:
            return await self._keeper.stop_job(ward, job, reason, grace_s)
        except WordStuck:
            return False

    async def settle(self, worker: str, fence: Fence, job: str, fence_off: bool = True) -> Settled:
        """What became of a job whose reply was lost.

        With ``fence_off`` a job that has not started never will: its lease is revoked, which the
        controller hears as "ended".
        """
        ward = self._keeper.wards.get(worker)
        if ward is None:
            history = self._keeper.gone.get(worker)
            if history is None:
                return Settled(None, False, False)
            return history.settle(fence, job, False)

        def decide(word: Word) -> Word | None:
            if not fence_off or word.job == job or word.fence != fence:
                return None
            if word.state == "idle":
                return leasing.revoked(word, time.monotonic())
            return leasing.draining(word) if word.state == "busy" else None

        try:
            changed = await ward.change(decide, WORD_PATIENCE_S) is not None
        except WordStuck:
            return Settled(None, False, True)
        if changed:
            self._keeper.wake()
        return ward.history().settle(fence, job, not ward.exited)

    async def kill_worker(self, worker: str, fence: Fence, job: str) -> bool:
        """Nobody can tell what became of ``job``: end the worker, if it is still that lease's."""
        ward = self._keeper.wards.get(worker)
        if ward is None or ward.exited:
            return False

        def decide(word: Word) -> Word | None:
            return leasing.revoked(word, time.monotonic()) if word.fence == fence else None

        try:
            if await ward.change(decide, 1.0) is None:
                return False
        except WordStuck:
            if ward.word().fence != fence:
                return False
        await self._keeper.kill(ward, f"the outcome of its job {job} was lost")
        return True

    # ------------------------------------------------------------ questions of people

    async def records(self, job: str = "", caller: str = "", limit: int = 100) -> list[JobRecord]:
        """The last finished jobs, oldest first; of one job or caller where given."""
        found = list(self._keeper.old_records)
        for ward in self._keeper.wards.values():
            found.extend(record for _, record in ward.ring.read())
        chosen = [
            record
            for record in found
            if (not job or record.job == job)
            and (not caller or caller in (record.caller, record.caller.partition("/")[2]))
        ]
        chosen.sort(key=lambda record: record.ended_at)
        return chosen[-limit:]

    async def ping(self) -> tuple[int, int]:
        """(epoch, pid)."""
        return self._epoch, os.getpid()

    async def stats(self) -> dict[str, Any]:
        """Processes and memory of this node's workers; GPUs where NVML is installed."""
        workers = {
            ward.worker: {
                "pid": ward.pid,
                "state": ward.word().state,
                "alive": not ward.exited,
                "rss_bytes": processes.rss_bytes(ward.pid) if not ward.exited else 0,
            }
            for ward in self._keeper.wards.values()
        }
        gpus = [use._asdict() for use in await asyncio.to_thread(gpu.uses)]
        return {
            "pid": os.getpid(),
            "epoch": self._epoch,
            "rss_bytes": processes.rss_bytes(os.getpid()),
            "workers": workers,
            "gpus": gpus,
        }


def _session_dir() -> str:
    context = ray.get_runtime_context()
    return os.path.join(context.get_temp_dir(), context.get_session_name())


def _node_ip() -> str:
    if not ray.is_initialized():
        return ""
    address: Callable[[], str] = ray.util.get_node_ip_address
    return address()


def _end_actor(handle: Any) -> None:
    ray.kill(handle, no_restart=True)


def _find_actor(name: str) -> Any:
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None
