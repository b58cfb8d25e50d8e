"""What this package asks of real GPUs. Nothing is imported that is not there already.

Used by the worker (is CUDA still untouched?) and by the warden (memory, by NVML where the
optional ``pynvml`` is installed). Without GPUs every answer is empty.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

VISIBLE = "CUDA_VISIBLE_DEVICES"

_LIBCUDA = "libcuda.so.1"
_CUDA_ERROR_NOT_INITIALIZED = 3
_DEVICE_FILES = "/dev/nvidia"


class GpuUse(NamedTuple):
    """One GPU as NVML sees it."""

    number: str  #: as in CUDA_VISIBLE_DEVICES
    uuid: str
    used_bytes: int
    total_bytes: int
    pids: tuple[int, ...]  #: processes with a context; of the host's pid namespace in containers


def hide() -> None:
    """No GPU for this process, until ``show``. Must come before anything calls ``cuInit``."""
    os.environ[VISIBLE] = ""


def show(gpu_ids: Collection[str], cpus: float) -> None:
    """From now on ``cuInit`` in this process and its children sees these GPUs."""
    os.environ[VISIBLE] = ",".join(gpu_ids)
    os.environ["OMP_NUM_THREADS"] = str(max(1, int(cpus)))


def cuda_touched() -> str:
    """Why this process can no longer be shown a GPU, or "".

    The driver reads CUDA_VISIBLE_DEVICES once, in ``cuInit``: a process that called it while its
    GPUs were hidden will never see one.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        cuda = getattr(torch, "cuda", None)
        if cuda is not None and cuda.is_initialized():
            return "torch.cuda is initialised"
    opened = _open_device_files()
    if opened:
        return f"{opened} is open: something called cuInit"
    if _libcuda_initialised():
        return "cuInit was called"
    return ""


def _open_device_files() -> str:
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/self/fd/{fd}")
                if target.startswith(_DEVICE_FILES):
                    return target
    return ""


def _libcuda_initialised() -> bool:
    try:
        # NOLOAD: ask only a library that is in this process already.
        library = ctypes.CDLL(_LIBCUDA, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(library.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_ERROR_NOT_INITIALIZED)


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # the module is there, a driver is not
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def uses(gpu_ids: Collection[str] | None = None) -> list[GpuUse]:
    """The GPUs of this node (or those of ``gpu_ids``, by index or UUID); [] without NVML."""
    found: list[GpuUse] = []
    with _nvml() as nvml:
        for index in range(nvml.nvmlDeviceGetCount() if nvml else 0):
            try:
                found.append(_use(nvml, index))
            except nvml.NVMLError:  # a GPU that fell off the bus must not hide the others
                continue
    if gpu_ids is None:
        return found
    return [use for use in found if use.number in gpu_ids or use.uuid in gpu_ids]


def _use(nvml: Any, index: int) -> GpuUse:
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(device)
    uuid = nvml.nvmlDeviceGetUUID(device)
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    return GpuUse(
        str(index),
        uuid.decode() if isinstance(uuid, bytes) else uuid,
        int(memory.used),
        int(memory.total),
        tuple(process.pid for process in processes),
    )
