"""One daemon thread per client that collects the controller's answers to syncs.

Usually one long poll is parked; a newer sync releases it. Replies carry actor handles, which Ray
must not be asked to load on its own callback thread: that thread only hears that a reply is there
(the flag, its first return), and this one fetches it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from firepool_ray.client.transport import CallFailed, Transport
from firepool_ray.errors import PoolUnavailable
from firepool_ray.runtime.protocol import SyncReply, SyncRequest

log = logging.getLogger(__name__)


class Poller:
    def __init__(
        self,
        transport: Transport,
        on_reply: Callable[[int, SyncReply], None],
        on_failure: Callable[[int, str], None],
    ) -> None:
        self._transport = transport
        self._on_reply = on_reply
        self._on_failure = on_failure
        self._answered: queue.SimpleQueue[tuple[int, object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="firepool-poller", daemon=True)
        self._thread.start()

    def send(self, request: SyncRequest) -> None:
        """In the calling thread, so that demand does not wait for a change of threads."""
        seq = request.seq
        try:
            self._transport.sync(request, lambda reply: self._answered.put((seq, reply)))
        except CallFailed as error:
            self._on_failure(seq, str(error))

    def stop(self) -> None:
        self._answered.put(None)

    def _serve(self) -> None:
        while (item := self._answered.get()) is not None:
            try:
                self._collect(*item)
            except Exception:
                log.exception("the pool's news could not be collected")

    def _collect(self, seq: int, ref: object) -> None:
        try:
            reply = self._transport.collect(ref)
        except PoolUnavailable as error:
            self._on_failure(seq, str(error))
        else:
            self._on_reply(seq, reply)
