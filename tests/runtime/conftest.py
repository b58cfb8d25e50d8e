"""A node without a controller: its warden, and workers that the test itself promotes."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray

from firepool_ray.binding import payload
from firepool_ray.core.model import Caller, Fence
from firepool_ray.runtime import protocol
from firepool_ray.runtime.processes import is_alive
from firepool_ray.runtime.protocol import Header, JobCall, Promotion, Topology, WorkerSpec
from firepool_ray.runtime.warden import Warden
from firepool_ray.runtime.worker import PoolWorker

_numbers = itertools.count(1)


def job_call(
    fn: Callable[..., Any],
    *args: Any,
    timeout_s: float = 0.0,
    env: tuple[tuple[str, str], ...] = (),
    send_fn: bool = True,
    **kwargs: Any,
) -> JobCall:
    data = payload.dumps(fn, out_of_band=False).data
    packed = payload.dumps((args, kwargs), ray.ObjectRef, out_of_band=False)
    return JobCall(
        job=f"job{next(_numbers)}",
        name=fn.__name__,
        submitted_at=time.time(),
        timeout_s=timeout_s,
        source="warm",
        env=env,
        fn_key=hashlib.sha1(data).hexdigest(),
        fn=data if send_fn else None,
        code_key="",
        code=None,
        args=packed.data,
        buffers=(),
    )


class Running:
    """A job under way."""

    def __init__(self, call: JobCall, header: Any, value: Any) -> None:
        self.job = call.job
        self.header_ref = header
        self.ref = value

    def header(self) -> Header:
        return protocol.unpack_header(ray.get(self.header_ref, timeout=60))

    def outcome(self) -> str:
        return self.header().outcome

    def value(self) -> Any:
        header = self.header()
        assert header.outcome == "ok", header
        return pickle.loads(header.value) if header.value is not None else ray.get(self.ref)


@dataclass
class Worker:
    node: Node
    name: str
    spec: WorkerSpec
    handle: Any
    pid: int
    pid_start: int
    fence: Fence = Fence(0, 0)

    def promote(self, fence: Fence | None = None, epoch: int = 0, caller: str = "caller") -> Any:
        fence = fence or Fence(epoch or self.node.epoch, next(_numbers))
        topology = Topology(self.spec.lane, self.spec.node_id, "", ("0",), 2.0)
        promotion = Promotion(
            epoch or self.node.epoch, fence, Caller("q", caller), "", "client", ("0",), topology
        )
        ready = ray.get(self.handle.promote.remote(promotion), timeout=60)
        self.fence = fence
        return ready

    def run(self, call: JobCall, *refs: Any, nested: bool = False) -> Running:
        packed = protocol.pack_call(self.fence, call, nested)
        return Running(call, *self.handle.run.remote(packed, *refs))

    def submit(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Running:
        return self.run(job_call(fn, *args, **options))

    def is_alive(self) -> bool:
        return is_alive(self.pid, self.pid_start)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def revoke(self, mode: str = "if_idle", *args: Any) -> str:
        return str(self.node.ask("revoke", self.node.epoch, self.name, self.fence, mode, *args))


class Node:
    """What a controller would use."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        self.node_id = context.get_node_id()
        self.epoch = 1
        name = protocol.warden_actor_name(self.node_id)
        options = {"name": name, "namespace": protocol.NAMESPACE, "lifetime": "detached"}
        actor = ray.remote(Warden).options(
            num_cpus=0, max_restarts=-1, max_concurrency=1000, **options
        )
        self.warden = actor.remote(self.node_id)
        self.state = self.hello(1)

    def hello(self, epoch: int) -> protocol.WardenState:
        self.epoch = max(epoch, self.epoch)
        state: protocol.WardenState = self.ask("hello", epoch)
        return state

    def ask(self, method: str, *args: Any) -> Any:
        return ray.get(getattr(self.warden, method).remote(*args), timeout=60)

    def start_worker(self, lane: str = "", *, promote: bool = True, **fields: Any) -> Worker:
        number = next(_numbers)
        lane = lane or f"lane{number}"
        name = f"w{number}"
        values: dict[str, Any] = {
            "worker": name,
            "lane": lane,
            "slot": 0,
            "profile": "p",
            "node_id": self.node_id,
            "device": lane,
            "epoch": self.epoch,
            "words_dir": self.state.words_dir,
            "device_lock_path": f"{self.state.words_dir}/device-{lane}.lock",
            "gpus": 0.0,
            "cpus": 1.0,
        }
        spec = WorkerSpec(**(values | fields))
        actor = ray.remote(PoolWorker).options(
            name=protocol.worker_actor_name("p", lane, 0, name),
            namespace=protocol.NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
        )
        handle = actor.remote(spec, self.warden)
        ready = ray.get(handle.ready.remote(), timeout=60)
        worker = Worker(self, name, spec, handle, ready.pid, ready.pid_start)
        if promote:
            worker.promote()
        return worker

    def files(self) -> set[str]:
        return set(os.listdir(self.state.words_dir))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    folder = tempfile.mkdtemp(prefix="fp")
    source = str(Path(__file__).parents[2])
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        _temp_dir=folder,
        namespace=protocol.NAMESPACE,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=500_000_000,
        runtime_env={"env_vars": {"PYTHONPATH": source}},
    )
    try:
        yield Node()
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def _shared() -> list[Worker]:
    return []


@pytest.fixture
def worker(node: Node, _shared: list[Worker]) -> Worker:
    """A promoted worker that tests of a module share: they leave it alive, with its lease."""
    if not _shared:
        _shared.append(node.start_worker())
    assert _shared[0].is_alive()
    return _shared[0]


@pytest.fixture
def victim(node: Node) -> Iterator[Worker]:
    """A promoted worker of the test's own; whatever is made of it, it is gone afterwards."""
    worker = node.start_worker()
    yield worker
    if worker.is_alive():
        worker.signal(signal.SIGCONT)
    node.ask("end_worker", worker.name, None)


@pytest.fixture
def call() -> Callable[..., JobCall]:
    return job_call


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Any]:
    def wait(what: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 60
        while not (result := what()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return result

    return wait
