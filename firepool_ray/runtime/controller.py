"""The pool's controller: one detached actor that owns the core's machine.

Called by clients (``sync``, ``tether``, ``watch_client``, ``leave``) and by people's tools
(``describe``, ``explain``). One event loop, no concurrency groups: every event reaches the machine
in order, and whatever it answers is carried out by ``effects``. No payload and nothing per job may
enter here. Its state is soft: a successor adopts what stands (see ``adoption``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from firepool_ray.core import events as ev
from firepool_ray.core.actions import WakeAt
from firepool_ray.core.machine import Machine
from firepool_ray.core.model import Caller
from firepool_ray.errors import IllegalTransition, PoolUnavailable, StaleEpoch
from firepool_ray.observe.served import Served
from firepool_ray.runtime import adoption, inspection, kv
from firepool_ray.runtime.effects import Effects
from firepool_ray.runtime.mailbox import Mailbox
from firepool_ray.runtime.pods import Pods
from firepool_ray.runtime.protocol import SyncReply, SyncRequest
from firepool_ray.runtime.wardens import Wardens

log = logging.getLogger(__name__)

#: A long poll is answered after this even without news, so that lost replies heal.
POLL_S = 10.0
#: Pause between two looks for draining nodes.
DRAIN_LOOK_S = 0.5
#: Pause between two looks for lanes and workers of superseded controllers.
STRAY_LOOK_S = 10.0
#: A client without tether that says nothing for so long is gone; a living one polls all the time.
SILENT_S = 40.0
#: Any exit code but 0 makes Ray restart the actor.
RESTART_CODE = 3
#: Before a start that failed is tried again.
RESTART_PAUSE_S = 1.0


class Controller:
    """Ray actor body; ``runtime.pool`` wraps it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._config = kv.get_config()
        self._epoch = kv.claim_epoch()
        self._started = time.monotonic()
        self._machine = Machine(self._config.to_spec(), self._epoch)
        self._boxes: dict[str, Mailbox] = {}
        self._served = Served()
        self._wardens = Wardens(self._epoch, self._feed, self._superseded, self._workers_on)
        self._pods = Pods(self._config, self._epoch, self._feed, self._wardens)
        self._effects = Effects(
            self._config,
            self._epoch,
            self._feed,
            self._wardens,
            self._boxes,
            self._superseded,
            self._pods.trouble,
        )
        self._wake: asyncio.TimerHandle | None = None
        self._booted = asyncio.Event()
        self._ending = False
        self._draining: set[str] = set()
        self._last_client_at = time.monotonic()
        self._tasks = [asyncio.ensure_future(self._boot())]

    def __repr__(self) -> str:
        return f"FirepoolController(epoch {self._epoch})"

    # ------------------------------------------------------------ the machine

    def _feed(self, event: ev.Event) -> None:
        """The only way to the machine."""
        self._try(event)

    def _try(self, event: ev.Event) -> str:
        """Returns why the machine refused the event; "" if it did not."""
        try:
            actions = self._machine.handle(event)
        except IllegalTransition as error:
            log.exception("refused: %s", event)
            return str(error)
        except Exception:
            log.exception("the machine failed on %s; a successor adopts what stands", event)
            os._exit(RESTART_CODE)
        for action in actions:
            if isinstance(action, WakeAt):
                self._set_timer(action.when)
            else:
                self._effects.run(action)
        return ""

    def _set_timer(self, when: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        delay = max(0.0, when - time.monotonic())
        self._wake = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._wake = None
        self._feed(ev.Woke(time.monotonic()))

    def _workers_on(self, node: str) -> list[str]:
        return [
            worker.id
            for worker in self._machine.pool.workers.values()
            if worker.lane.node == node and worker.state not in ("starting", "leaving")
        ]

    # ------------------------------------------------------------ its own life

    async def _boot(self) -> None:
        await self._pods.start()
        try:
            for event in await adoption.adopt(
                self._config, self._epoch, self._effects, self._wardens
            ):
                self._feed(event)
            self._feed(ev.Reconciled(time.monotonic()))
        except StaleEpoch as error:
            self._superseded(str(error))
            return
        except Exception:
            log.exception("taking over failed; Ray restarts this controller")
            await asyncio.sleep(RESTART_PAUSE_S)
            os._exit(RESTART_CODE)
        self._booted.set()
        self._tasks += [
            asyncio.ensure_future(self._repeat(self._look_for_draining, DRAIN_LOOK_S)),
            asyncio.ensure_future(self._repeat(self._look_for_strays, STRAY_LOOK_S)),
        ]
        self._tasks.append(asyncio.ensure_future(self._repeat(self._look_for_silent, SILENT_S / 4)))
        if self._config.embedded:
            self._tasks.append(asyncio.ensure_future(self._repeat(self._look_for_clients, 1.0)))

    async def _repeat(self, look: Any, pause_s: float) -> None:
        while not self._ending:
            try:
                await look()
            except StaleEpoch as error:
                self._superseded(str(error))
                return
            except RayError:
                log.exception("%s failed", look.__name__)
            await asyncio.sleep(pause_s)

    async def _look_for_draining(self) -> None:
        draining = await asyncio.to_thread(inspection.draining_nodes)
        for node in sorted(draining - self._draining):
            self._feed(ev.NodeDraining(time.monotonic(), node))
        self._draining = draining

    async def _look_for_strays(self) -> None:
        if await asyncio.to_thread(kv.latest_epoch) > self._epoch:
            raise StaleEpoch(self._epoch, await asyncio.to_thread(kv.latest_epoch))
        await adoption.remove_strays(self._epoch, self._effects)

    async def _look_for_clients(self) -> None:
        now = time.monotonic()
        if self._boxes:
            self._last_client_at = now
        elif now - self._last_client_at > self._config.client_linger_s:
            log.info("no client for %g s: the embedded pool ends", self._config.client_linger_s)
            await self.end()
            self._exit()

    async def _look_for_silent(self) -> None:
        """A client that died before it tethered would never be noticed otherwise."""
        now = time.monotonic()
        for box in list(self._boxes.values()):
            if not box.tethered and now - box.heard > SILENT_S:
                self._lost(box.client, "it never tethered and is silent")

    def _superseded(self, why: str) -> None:
        """A newer controller is in charge: this one must not act any more."""
        if not self._ending:
            log.error("controller of epoch %d leaves: %s", self._epoch, why)
            self._ending = True
            self._exit()

    def _exit(self) -> None:
        me = ray.get_runtime_context().current_actor
        self._tasks.append(asyncio.ensure_future(asyncio.to_thread(ray.kill, me)))

    async def end(self) -> None:
        """Remove every worker, lane and warden. The caller then kills this actor."""
        self._ending = True
        self._pods.stop()
        for box in self._boxes.values():
            box.close()
        await inspection.remove_everything(self._effects, self._wardens)

    # ------------------------------------------------------------ clients

    def _in_charge(self) -> None:
        if self._ending:
            raise PoolUnavailable("the pool is shutting down")

    @ray.method(num_returns=2)
    async def sync(self, request: SyncRequest) -> tuple[None, SyncReply]:
        """A client's whole situation; answered when there is news for it (the long poll).

        The first return is plain: a client hears of the answer by it, and loads the second, which
        holds actor handles, where loading may take its time.
        """
        return None, await self._answer(request)

    async def _answer(self, request: SyncRequest) -> SyncReply:
        await self._booted.wait()
        self._in_charge()
        box = self._boxes.get(request.client)
        if box is None:
            box = self._boxes[request.client] = Mailbox(request.client, time.monotonic())
        if not box.accept(request, self._epoch, time.monotonic()):
            return SyncReply(self._epoch, superseded=True)
        if request.served:
            self._served.update(request.client, request.served)
        self._feed(
            ev.ClientSynced(
                time.monotonic(),
                request.client,
                request.seq,
                request.held,
                request.acked,
                request.demands,
                request.parent,
                request.blocked,
            )
        )
        await box.wait(POLL_S)
        if box.seq != request.seq:
            return SyncReply(self._epoch, superseded=True)
        self._in_charge()
        return box.take(self._epoch)

    async def tether(self, client: str) -> None:
        """Never returns: its ref tells the controller when the client's process is gone."""
        await asyncio.Event().wait()

    async def watch_client(self, client: str, refs: list[Any]) -> None:
        """``refs`` holds the client's own ``tether`` call; awaiting it raises when it dies."""
        await self._booted.wait()
        box = self._boxes.get(client)
        if box is None:
            box = self._boxes[client] = Mailbox(client, time.monotonic())
        box.tethered = True
        try:
            await refs[0]
        except RayActorError as error:
            # Only the connection broke. The client tethers again when its poll fails, too; if it
            # should be gone, its silence tells.
            log.warning("tether of client %s broke: %s", client, error)
            box.tethered = False
        except (RayError, asyncio.CancelledError) as error:
            self._lost(client, f"its process is gone ({type(error).__name__})")

    async def leave(self, client: str) -> None:
        """The client ends on purpose."""
        await self._booted.wait()
        self._lost(client, "it left")

    def _lost(self, client: str, reason: str) -> None:
        box = self._boxes.pop(client, None)
        if box is not None:
            box.close()
        self._served.fold(client)
        self._feed(ev.ClientLost(time.monotonic(), client, reason))

    async def closing(self, queue: str, caller: str) -> None:
        """The caller is done: its idle workers go at once."""
        self._feed(ev.CallerClosing(time.monotonic(), Caller(queue, caller)))

    async def queue_signal(self, queue: str, said: dict[str, Any]) -> None:
        """What another system says of a queue: the fields of ``core.events.QueueSignal``.

        Raises ``ValueError`` for a queue that the pool does not have, and values out of range.
        """
        try:
            refused = self._try(ev.QueueSignal(time.monotonic(), queue, **said))
        except TypeError as error:
            refused = str(error)
        if refused:
            raise ValueError(refused)

    async def set_idle_cap(self, gpus: float) -> None:
        """Change the cap on idle units. Raises ``ValueError`` for a negative one."""
        if not gpus >= 0:
            raise ValueError(f"the cap on idle GPUs must be >= 0, not {gpus}")
        self._feed(ev.IdleCapSet(time.monotonic(), gpus))

    # ------------------------------------------------------------ people

    async def ping(self) -> tuple[int, int]:
        """(epoch, pid), once it has taken over."""
        await self._booted.wait()
        return self._epoch, os.getpid()

    async def spec(self) -> dict[str, Any]:
        return self._config.model_dump(mode="json")

    async def describe(self) -> dict[str, Any]:
        await self._booted.wait()
        return inspection.describe(
            self._machine.pool,
            self._config,
            self._effects,
            self._wardens,
            self._pods,
            self._boxes,
            self._served,
            self._started,
        )

    async def explain(self, what: str) -> dict[str, Any]:
        await self._booted.wait()
        return await inspection.explain(
            what, self._machine.pool, self._effects, self._wardens, self._pods
        )
