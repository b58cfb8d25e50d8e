"""Builds the programs of the cluster once, into a cache folder, with Go.

Names carry versions and a digest of the Go sources, so that a change of either builds anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from tests.kube.bed.process import BedError

KUBERAY = "1.5.0"
KUEUE = "0.17.0"
PROGRAMS = ("etcd", "controlplane", "kuberay", "kueue")
_GO_NEEDED = (1, 24)
_SOURCES = Path(__file__).parent / "go"
_TOOLS = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "openssl": "openssl",
    "wget": "wget",  # KubeRay's probes call it inside the pods
}
_KUBERAY_MODULE = "github.com/ray-project/kuberay/ray-operator"
_KUEUE_MODULE = "sigs.k8s.io/kueue"
_DEFINITIONS = {
    "kuberay": (f"{_KUBERAY_MODULE}@v{KUBERAY}", "config/crd/bases"),
    "kueue": (f"{_KUEUE_MODULE}@v{KUEUE}", "config/components/crd/bases"),
}


def cache_folder() -> Path:
    default = Path.home() / ".cache" / "firepool-bed"
    return Path(os.environ.get("FIREPOOL_BED_CACHE") or default)


def path_of(program: str) -> Path:
    """Where a program lies once built: etcd, controlplane, kuberay or kueue."""
    if program in ("kuberay", "kueue"):
        return cache_folder() / f"{program}-{KUBERAY if program == 'kuberay' else KUEUE}"
    return cache_folder() / f"{program}-{_version(program)}-{_digest(_SOURCES / program)}"


def definitions(program: str) -> list[Mapping[str, object]]:
    """The custom resource definitions that belong to kuberay or kueue."""
    found: list[Mapping[str, object]] = json.loads(_definitions_path(program).read_text())
    return found


def missing_tool() -> str | None:
    """One line about what this machine lacks for a bed to run, if anything."""
    if os.geteuid() != 0:
        return "the test cluster needs root (it makes network and mount namespaces)"
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            return f"the test cluster needs the command {tool} (package {package})"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "true"], capture_output=True, check=False
    )
    if tried.returncode != 0:
        return "the test cluster needs the right to make namespaces (CAP_SYS_ADMIN)"
    return None


def require(*programs: str) -> None:
    """Raises ``BedError`` in one line unless this machine and the cache are ready."""
    problem = missing_tool()
    absent = [program for program in programs if not is_built(program)]
    if problem is None and absent:
        problem = f"{', '.join(absent)} not built: run python -m tests.kube.bed build"
    if problem is not None:
        raise BedError(problem)


def check() -> None:
    """Raises ``BedError`` in one line if this machine can neither build nor run a bed."""
    problem = missing_tool()
    if problem is not None:
        raise BedError(problem)
    if not all(map(is_built, PROGRAMS)):
        require_go()


def build() -> None:
    """Builds what is not there yet; raises ``BedError`` in one line for what is missing."""
    problem = missing_tool()
    if problem is not None:
        raise BedError(problem)
    wanted = [program for program in PROGRAMS if not is_built(program)]
    if wanted:
        require_go()
        cache_folder().mkdir(parents=True, exist_ok=True)
    for program in wanted:
        print(f"building {path_of(program).name} (minutes, once)", file=sys.stderr, flush=True)
        if program in _DEFINITIONS:
            _install(program)
            _keep_definitions(program)
        else:
            _compile(program)


def is_built(program: str) -> bool:
    files = [path_of(program)]
    if program in _DEFINITIONS:
        files.append(_definitions_path(program))
    return all(file.exists() for file in files)


def _compile(program: str) -> None:
    flags = "-s -w"
    if program == "controlplane":
        # clients parse the version that the API server tells
        major, minor, _ = (version := _version(program)).split(".")
        told = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
        for name, value in told.items():
            flags += f" -X k8s.io/component-base/version.{name}={value}"
    out = path_of(program).with_suffix(".new")
    go("build", "-trimpath", f"-ldflags={flags}", "-o", str(out), ".", cwd=_SOURCES / program)
    out.replace(path_of(program))


def _install(program: str) -> None:
    module, main = {
        "kuberay": (f"{_KUBERAY_MODULE}@v{KUBERAY}", "ray-operator"),
        "kueue": (f"{_KUEUE_MODULE}/cmd/kueue@v{KUEUE}", "kueue"),
    }[program]
    folder = cache_folder() / f"{program}.new"
    go("install", "-ldflags=-s -w", module, cwd=cache_folder(), GOBIN=str(folder))
    (folder / main).replace(path_of(program))
    folder.rmdir()


def _keep_definitions(program: str) -> None:
    """As JSON, which is read a hundred times as fast as YAML."""
    module, folder = _DEFINITIONS[program]
    source = Path(go("env", "GOMODCACHE", cwd=cache_folder()).strip()) / module / folder
    found = [yaml.safe_load(file.read_text()) for file in sorted(source.glob("*.yaml"))]
    if not found:
        raise BedError(f"no definitions in {source}")
    _definitions_path(program).write_text(json.dumps(found))


def _definitions_path(program: str) -> Path:
    return cache_folder() / f"{path_of(program).name}.definitions.json"


def _version(program: str) -> str:
    """What ``go.mod`` says, the one place where it stands."""
    module = {"etcd": "go.etcd.io/etcd/server/v3", "controlplane": "k8s.io/kubernetes"}[program]
    text = (_SOURCES / program / "go.mod").read_text()
    found = re.search(rf"{re.escape(module)} v(\S+)", text)
    assert found, f"{module} is not in go.mod"
    return found[1]


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in _files(folder):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:8]


def _files(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in ("go.mod", "go.sum", "main.go"))


def require_go() -> None:
    """Raises ``BedError`` in one line where Go is missing or too old."""
    needed = ".".join(map(str, _GO_NEEDED))
    if shutil.which("go") is None:
        raise BedError(f"building the test cluster needs Go {needed} or newer: no command go")
    found = re.search(r"go(\d+)\.(\d+)", go("version", cwd=Path("/")))
    if found is None or (int(found[1]), int(found[2])) < _GO_NEEDED:
        have = found[0] if found else "unknown"
        raise BedError(f"building the test cluster needs Go {needed} or newer: this is {have}")


def go(*argv: str, cwd: Path, **env: str) -> str:
    """What it printed; raises ``BedError`` with the end of what went wrong."""
    done = subprocess.run(
        ["go", *argv],
        cwd=cwd,
        env={**os.environ, "CGO_ENABLED": "0", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BedError(f"go {argv[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
