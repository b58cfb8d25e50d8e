"""Custom resource definitions of schedulers that are not run here: KAI and Volcano.

Theirs, from their Go modules: KAI publishes them, Volcano's are generated from its types by the
generator that it uses itself. Kept in the cache folder as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.kube.bed.binaries import cache_folder, go, require_go
from tests.kube.bed.process import BedError, command

KAI = "github.com/NVIDIA/KAI-scheduler@v0.12.0"
VOLCANO = "volcano.sh/apis@v1.14.0"
_GENERATOR = "sigs.k8s.io/controller-tools/cmd/controller-gen@v0.18.0"
NAMES = ("kai", "volcano")


def definitions(name: str) -> list[Mapping[str, object]]:
    """Of Queues and PodGroups. Raises ``BedError`` if they were not built."""
    if not _path(name).exists():
        raise BedError(f"definitions of {name} not built: run python -m tests.kube.bed build")
    found: list[Mapping[str, object]] = json.loads(_path(name).read_text())
    return found


def build() -> None:
    """Makes what is not there yet."""
    for name in NAMES:
        if _path(name).exists():
            continue
        require_go()
        cache_folder().mkdir(parents=True, exist_ok=True)
        print(f"building {_path(name).name} (a minute, once)", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            folder = _published() if name == "kai" else _generated(Path(scratch))
            files = sorted(folder.glob("scheduling*.yaml"))
            if not files:
                raise BedError(f"no definitions in {folder}")
            _path(name).write_text(json.dumps([yaml.safe_load(f.read_text()) for f in files]))


def _path(name: str) -> Path:
    version = {"kai": KAI, "volcano": VOLCANO}[name].partition("@v")[2]
    return cache_folder() / f"{name}-{version}.definitions.json"


def _published() -> Path:
    return _download(KAI) / "deployments" / "kai-scheduler" / "crds"


def _generated(scratch: Path) -> Path:
    source = scratch / "source"
    shutil.copytree(_download(VOLCANO), source)
    command("chmod", "-R", "u+w", source)
    go("install", _GENERATOR, cwd=cache_folder(), GOBIN=str(scratch))
    types = "paths=./pkg/apis/scheduling/v1beta1"
    generator = ("env", "-C", source, scratch / "controller-gen")
    command(*generator, "crd", types, f"output:crd:dir={scratch}")
    return scratch


def _download(module: str) -> Path:
    return Path(json.loads(go("mod", "download", "-json", module, cwd=cache_folder()))["Dir"])
