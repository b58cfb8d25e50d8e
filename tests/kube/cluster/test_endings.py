"""Nothing of a cluster is left behind, and a program of it that ends says so."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import eventually, eventually_none, processes_of
from tests.kube.bed import Bed, BedError


def test_a_cluster_ends_whole_and_another_may_follow() -> None:
    for _ in range(2):
        with Bed("cpu-a", operator=False) as bed:
            directory = bed.directory
            assert len(bed.core.list_node().items) == 1
        assert not directory.exists()
        assert not eventually_none(lambda where=str(directory): processes_of(where))


def test_a_lost_program_is_told_with_its_log() -> None:
    with Bed("cpu-a", operator=False) as bed:
        (etcd,) = [
            pid
            for pid, name in processes_of(str(bed.directory)).items()
            if name.startswith("etcd") and pid > 1
        ]
        os.kill(etcd, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(BedError, match=r"etcd ended with code -9; its log ends"):
            bed.wait_for(lambda: False, 30.0, "nothing")
        assert time.monotonic() - began < 20.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_entered_ends_with_the_command(number: signal.Signals, tmp_path: Path) -> None:
    mark, scratch = tmp_path / "up", tmp_path / "scratch"
    script = f"setsid sleep 600 & echo $FIREPOOL_BED_SCRATCH > {scratch}; touch {mark}; wait"
    entered = ["-m", "tests.kube.bed", "enter", "--", "bash", "-c", script, str(tmp_path)]
    process = subprocess.Popen([sys.executable, *entered], env={**os.environ, "TAG": str(tmp_path)})
    eventually(mark.exists)
    assert len(processes_of(str(tmp_path))) >= 5
    process.send_signal(number)
    process.wait()
    assert not eventually_none(lambda: processes_of(str(tmp_path)))
    left = Path(scratch.read_text().strip())
    assert left.exists() == (number == signal.SIGKILL)
    shutil.rmtree(left, ignore_errors=True)
