"""``redis-server`` for pods that run it: this machine's own, else Debian's packages.

Those are unpacked in the cache folder: nothing is installed and no service starts.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.kube.bed import binaries
from tests.kube.bed.process import BedError

#: The program, and the libraries of it that a machine may lack.
_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")
_FETCH_S = 300.0
#: ``argv[0]`` tells the program what to be, so it is called by its own name.
_WRAPPER = """#!/bin/sh
export LD_LIBRARY_PATH=$(echo {root}/usr/lib/*-linux-gnu)
exec {root}/usr/bin/redis-server "$@"
"""


def folder() -> Path:
    """Where ``redis-server`` lies once fetched: at the end of every pod's PATH."""
    return binaries.cache_folder() / "redis"


def is_there() -> bool:
    return (folder() / "redis-server").exists() or shutil.which("redis-server") is not None


def fetch() -> None:
    """Raises ``BedError`` in one line where that is not possible."""
    if is_there():
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise BedError(
            "the test cluster needs redis-server, and there is no apt-get to fetch it with: "
            "install your distribution's package of it"
        )
    print("fetching redis-server (seconds, once)", file=sys.stderr, flush=True)
    fetched = folder().with_suffix(".new")
    shutil.rmtree(fetched, ignore_errors=True)
    fetched.mkdir(parents=True)
    if _apt("download", *_PACKAGES, where=fetched):  # the lists of a fresh machine are empty
        _apt("update", where=fetched)
        if said := _apt("download", *_PACKAGES, where=fetched):
            raise BedError(f"redis-server cannot be fetched, install it yourself: {said}")
    for package in sorted(fetched.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, fetched / "root"], check=True)
        package.unlink()
    wrapper = fetched / "redis-server"
    wrapper.write_text(_WRAPPER.format(root=folder() / "root"))
    wrapper.chmod(0o755)
    shutil.rmtree(folder(), ignore_errors=True)
    fetched.rename(folder())


def _apt(*argv: str, where: Path) -> str:
    """What went wrong, "" for nothing."""
    done = subprocess.run(
        ["apt-get", "--quiet", *argv],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=_FETCH_S,
        check=False,
    )
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-500:]
