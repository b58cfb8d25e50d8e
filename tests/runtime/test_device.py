"""The lock of a device, and whose it is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from firepool_ray.errors import DeviceBusy
from firepool_ray.runtime import device


def test_one_holds_it_and_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "device.lock")
    held = device.take(path, "e1w1", 0.0)
    with pytest.raises(DeviceBusy, match=f"locked by e1w1 on {os.uname().nodename}"):
        device.take(path, "e1w2", 0.05)
    os.close(held)
    os.close(device.take(path, "e1w2", 0.0))
    assert (tmp_path / "device.lock").read_text() == device.holder("e1w2")


def test_it_can_be_taken_by_other_users(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        device.check(str(tmp_path / "device.lock"))
    finally:
        os.umask(before)
    assert (tmp_path / "device.lock").stat().st_mode & 0o777 == 0o666


def test_what_a_worker_left_is_told_from_its_successor(tmp_path: Path) -> None:
    path = str(tmp_path / "device.lock")

    def is_rid_of(worker: str) -> bool:
        return device.wait_left(path, worker, time.monotonic() + 0.05)

    assert is_rid_of("e1w1")  # no file: never active
    left = device.take(path, "e1w1", 0.0)
    assert not is_rid_of("e1w1")
    os.close(left)
    assert is_rid_of("e1w1")
    successor = device.take(path, "e1w2", 0.0)
    assert is_rid_of("e1w1")  # of another pod, promoted when the first was given up
    assert not is_rid_of("e1w2")
    os.close(successor)


def test_a_folder_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    path = str(tmp_path / "unmounted" / "device.lock")
    for use in (device.check, lambda path: device.take(path, "w", 0.0)):
        with pytest.raises(RuntimeError, match="must be mounted.*kubernetes.device_locks"):
            use(path)
