"""The check of a real GPU says plainly where there is none; the rest of it needs one."""

from __future__ import annotations

import ctypes.util
import subprocess
import sys


def test_without_a_driver_it_says_so_and_checks_nothing() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "firepool_ray.runtime.gpu_check"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if ctypes.util.find_library("cuda") is None:
        assert ran.returncode == 2, ran.stderr
        assert "no GPU here" in ran.stdout + ran.stderr
    else:
        assert ran.returncode == 0, ran.stdout + ran.stderr
