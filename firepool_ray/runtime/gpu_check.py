"""``python -m firepool_ray.runtime.gpu_check``: what the pool relies on, tried on a real GPU.

Hiding, showing and leaving (see ``gpu``), with the bare driver library, so that nothing else has
to be installed. Every trial is a process of its own, since the driver reads its environment once
per process. Exit status: 0 all as expected, 1 not so, 2 no GPU here. Takes under a minute.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from firepool_ray.runtime import gpu, processes
from firepool_ray.runtime.sweep import sweep

_NO_DEVICE = 100
_HELD_BYTES = 512 << 20
_SLACK_BYTES = 64 << 20
_PATIENCE_S = 20.0
_WORKER = "gpu-check"
_NO_WORD = f"/proc/self/no word of {_WORKER}"  #: nobody maps it


class Driver:
    """The few calls of libcuda that are needed. Raises ``OSError`` where there is none."""

    def __init__(self) -> None:
        self._lib: Any = ctypes.CDLL("libcuda.so.1")

    def init(self) -> int:
        return int(self._lib.cuInit(0))

    def count(self) -> int:
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def open(self) -> None:
        """The primary context of the first visible device, current in this thread."""
        device, handle = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(handle), device)
        self._call("cuCtxSetCurrent", handle)

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> None:
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._lib, name)(*args)
        if status != 0:
            raise RuntimeError(f"{name} answers {status}")


# ------------------------------------------------------------ what the trials' processes do


def _count() -> str:
    driver = Driver()
    status = driver.init()
    return str(driver.count()) if status == 0 else f"cuInit answers {status}"


def _hidden() -> str:
    gpu.hide()
    before = gpu.cuda_touched()
    status = Driver().init()
    after = gpu.cuda_touched()
    gpu.show(["0"], 1)
    late = Driver().init()
    return f"before={before!r} status={status} noticed={bool(after)} late={late != 0}"


def _shown() -> str:
    gpu.hide()
    driver = Driver()  # loading the library is harmless, and preloads do it
    before = gpu.cuda_touched()
    gpu.show(["0"], 1)
    status = driver.init()
    driver.open()
    return f"before={before!r} status={status} count={driver.count()}"


def _free() -> str:
    driver = Driver()
    driver.init()
    driver.open()
    return str(driver.free_bytes())


def _hold() -> str:
    driver = Driver()
    driver.init()
    driver.open()
    driver.allocate(_HELD_BYTES)
    print("holding", flush=True)
    time.sleep(600)
    return ""


def _hold_in_a_session() -> str:
    """A worker whose grandchild, in its own session, holds the memory."""
    os.environ[processes.MARKER] = _NO_WORD
    processes.adopt_orphans()
    command = [sys.executable, "-m", "firepool_ray.runtime.gpu_check", "hold"]
    subprocess.Popen(command, start_new_session=True)
    time.sleep(600)
    return ""


_ROLES: dict[str, Callable[[], str]] = {
    "count": _count,
    "hidden": _hidden,
    "shown": _shown,
    "free": _free,
    "hold": _hold,
    "hold_in_a_session": _hold_in_a_session,
}


# ------------------------------------------------------------ the trials


def _start(role: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "firepool_ray.runtime.gpu_check", role]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _ask(role: str) -> str:
    return _start(role).communicate()[0].strip()


def _try_leaving(role: str, free_before: int) -> str:
    """Kill and sweep a process that holds memory; "" if the memory comes back."""
    child = _start(role)
    assert child.stdout is not None
    if child.stdout.readline().strip() != "holding":
        return f"could not allocate {_HELD_BYTES >> 20} MiB"
    held = free_before - int(_ask("free"))
    start = processes.start_of(child.pid)
    child.kill()  # as the OOM killer would; what it started lives on
    began = time.monotonic()
    left = sweep(
        _WORKER,
        child.pid,
        start,
        _NO_WORD,
        known=(),
        spare={os.getpid()},
        device_lock="",
        gpu_ids=(),
        deadline=began + _PATIENCE_S,
    )
    swept_s = time.monotonic() - began
    child.wait()
    if left:
        return left
    while free_before - int(_ask("free")) > _SLACK_BYTES:
        if time.monotonic() - began > _PATIENCE_S:
            return f"{held >> 20} MiB do not come back within {_PATIENCE_S:g} s"
    print(f"   {held >> 20} MiB held; swept in {swept_s * 1000:.0f} ms and free again")
    return ""


def _expect(name: str, got: str, wanted: str) -> bool:
    passed = got == wanted
    print(f"{'ok  ' if passed else 'FAIL'} {name}" + ("" if passed else f": {got}, not {wanted}"))
    return passed


def main() -> int:
    count = _ask("count")
    if not count.isdigit() or count == "0":
        print(f"no GPU here ({count or 'no libcuda.so.1'}): nothing was checked")
        return 2
    print(f"{count} GPU(s); NVML: {'yes' if gpu.uses() else 'no (pynvml is not installed)'}")
    hidden = f"before='' status={_NO_DEVICE} noticed=True late=True"
    passed = [
        _expect(
            "a hidden GPU stays hidden, and a standby that looked is noticed",
            _ask("hidden"),
            hidden,
        ),
        _expect(
            "a standby that did not look sees exactly its lane's GPU",
            _ask("shown"),
            "before='' status=0 count=1",
        ),
    ]
    free = int(_ask("free"))
    passed.append(_expect("memory of a killed worker comes back", _try_leaving("hold", free), ""))
    passed.append(
        _expect(
            "so does that of a child in its own session",
            _try_leaving("hold_in_a_session", free),
            "",
        )
    )
    return 0 if all(passed) else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        try:
            print(_ROLES[sys.argv[1]](), flush=True)
        except (OSError, RuntimeError) as error:
            print(error, flush=True)
        sys.exit(0)
    sys.exit(main())
