"""The caller's own modules, shipped to workers as source in one small zip.

The client builds the zip; the worker puts it first on ``sys.path``. So functions of modules that
no worker has installed pickle by reference, and their classes keep one identity there. What lies
in ``__main__`` is not shipped: cloudpickle sends it by value. Installed packages are never
shipped: they belong to the worker's image. No Ray here.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import site
import sys
import sysconfig
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

#: Modules beside the script that were not imported yet are shipped too, since functions import
#: lazily; not beyond this many bytes, so that a script in a crowded folder stays cheap to send.
SIBLING_BYTES = 2 << 20
#: Files are looked at again for changes at most this often.
RECHECK_S = 1.0

_NEVER_SHIPPED = {"__main__", "__mp_main__", "firepool_ray", "ray"}
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # a fixed date keeps equal sources equal zips


class Code(NamedTuple):
    """``key`` identifies the sources; "" and no bytes where the caller has no own modules."""

    key: str
    data: bytes


NO_CODE = Code("", b"")


class _Source(NamedTuple):
    path: str
    stamp: tuple[int, int]  #: (mtime in ns, size)
    text: bytes


class _Builder:
    """Builds the zip of this process; rebuilds only what changed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  #: a signal handler may submit, too
        self._sources: dict[str, _Source] = {}  #: by name in the zip
        self._code = NO_CODE
        self._module_count = -1
        self._next_check_s = 0.0

    def build(self) -> Code:
        if self._module_count == len(sys.modules) and time.monotonic() < self._next_check_s:
            return self._code
        with self._lock:
            count = len(sys.modules)
            sources = dict(_collect(self._sources))
            if sources != self._sources or self._module_count < 0:
                self._sources = sources
                self._code = _zip({name: source.text for name, source in sources.items()})
            self._module_count = count
            self._next_check_s = time.monotonic() + RECHECK_S
            return self._code


_builder = _Builder()


def build_code(modules: Iterable[ModuleType] | None = None) -> Code:
    """The caller's own modules as a zip, built again only after a change.

    With ``modules`` exactly these are packed, without a cache.
    """
    if modules is None:
        return _builder.build()
    sources = ((name, _read(path, module, None)) for name, path, module in _own(modules))
    return _zip({name: source.text for name, source in sources if source is not None})


def _zip(texts: dict[str, bytes]) -> Code:
    if not texts:
        return NO_CODE
    digest = hashlib.sha256()
    folders: set[str] = set()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(texts):
            digest.update(b"%s\0%d\0" % (name.encode(), len(texts[name])))
            digest.update(texts[name])
            # zipimport finds namespace packages by their explicit folder entries only
            for parent in reversed(Path(name).parents[:-1]):
                if (folder := f"{parent.as_posix()}/") not in folders:
                    folders.add(folder)
                    archive.writestr(zipfile.ZipInfo(folder, _ZIP_DATE), b"")
            info = zipfile.ZipInfo(name, _ZIP_DATE)
            archive.writestr(info, texts[name], zipfile.ZIP_DEFLATED)
    return Code(digest.hexdigest()[:32], file.getvalue())


def _collect(known: dict[str, _Source]) -> Iterator[tuple[str, _Source]]:
    """Own modules by their name in the zip: those applied here, those loaded, those beside."""
    found: dict[str, _Source] = {
        name: _Source("", (0, 0), text) for name, text in _applied.texts.items()
    }
    for name, path, module in _own(list(sys.modules.values())):
        source = _read(path, module, known.get(name))
        if source is not None:
            found[name] = source
    for name, path in _siblings():
        if name not in found:
            source = _read(path, None, known.get(name))
            if source is not None:
                found[name] = source
    return iter(sorted(found.items()))


def _read(path: str, module: ModuleType | None, known: _Source | None) -> _Source | None:
    try:
        stat = os.stat(path)
        stamp = (stat.st_mtime_ns, stat.st_size)
        if known is not None and known.path == path and known.stamp == stamp:
            return known
        return _Source(path, stamp, Path(path).read_bytes())
    except OSError:
        return _read_from_loader(path, module, known)


def _read_from_loader(
    path: str, module: ModuleType | None, known: _Source | None
) -> _Source | None:
    """A module that lies inside an archive, or whose file went away after it was loaded."""
    if known is not None and known.path == path:
        return known
    get_data = getattr(getattr(module, "__loader__", None), "get_data", None)
    if get_data is None:
        return None
    try:
        return _Source(path, (0, 0), bytes(get_data(path)))
    except OSError:
        return None


def _own(modules: Iterable[ModuleType]) -> list[tuple[str, str, ModuleType]]:
    """(name in the zip, file, module) of the caller's modules that are plain source.

    A top-level package with a loaded extension module is left out whole: half a package cannot be
    imported, and compiled code belongs to the worker's image.
    """
    own: list[tuple[str, str, ModuleType]] = []
    compiled: set[str] = set()
    installed = _installed_folders()
    script_folder = _script_folder()
    for module in modules:
        spec = getattr(module, "__spec__", None)
        path = getattr(spec, "origin", None) or getattr(module, "__file__", None)
        name = getattr(spec, "name", None) or getattr(module, "__name__", None)
        if not isinstance(path, str) or not isinstance(name, str) or not os.path.isabs(path):
            continue
        top = name.partition(".")[0]
        if top in _NEVER_SHIPPED or not _is_own_file(path, installed, script_folder):
            continue
        if path.endswith(".py"):
            inner = "/__init__.py" if hasattr(module, "__path__") else ".py"
            own.append((name.replace(".", "/") + inner, path, module))
        else:
            compiled.add(top)
    return [
        entry for entry in own if entry[0].partition("/")[0].removesuffix(".py") not in compiled
    ]


def _is_own_file(path: str, installed: tuple[str, ...], script_folder: str) -> bool:
    if script_folder and path.startswith(script_folder):
        inside = Path(path[len(script_folder) :]).parts
        return "site-packages" not in inside and "dist-packages" not in inside
    return not path.startswith(installed) and not {"site-packages", "dist-packages"}.intersection(
        Path(path).parts
    )


def _installed_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(site.getsitepackages() if hasattr(site, "getsitepackages") else ())
    if site.ENABLE_USER_SITE:
        folders.add(site.getusersitepackages())
    folders.update([os.path.realpath(folder) for folder in folders])
    return tuple(sorted(f"{folder}{os.sep}" for folder in folders))


def _script_folder() -> str:
    """The folder of the running script with a slash at its end; "" for ``-m``, ``-c``, a prompt."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is None or getattr(main, "__spec__", None) is not None:
        return ""
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        return ""
    folder += os.sep
    # Ray's own worker script is installed; so are our examples, but those are scripts of the user
    return "" if folder.startswith(_installed_folders()) and "_examples" not in folder else folder


def _siblings() -> list[tuple[str, str]]:
    """(name in the zip, file) of what the script could still import from its own folder.

    Not the script itself: people edit it while it runs.
    """
    folder = _script_folder()
    if not folder or folder.startswith(_installed_folders()) or folder == f"{Path.home()}{os.sep}":
        return []
    found: list[tuple[str, str]] = []
    total = 0
    script = os.path.basename(getattr(sys.modules["__main__"], "__file__", ""))
    for path in _source_files(Path(folder)):
        if path.name == script and path.parent == Path(folder):
            continue
        try:
            total += path.stat().st_size
        except OSError:
            continue
        if total > SIBLING_BYTES or len(found) >= 1000:
            return []
        found.append((path.relative_to(folder).as_posix(), str(path)))
    return found


def _source_files(folder: Path) -> Iterator[Path]:
    """Modules directly in the folder, and whole packages below it."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.name.endswith(".py") and entry.is_file():
            yield path
        elif entry.name.isidentifier() and (path / "__init__.py").is_file():
            yield from _source_files(path)


class _Applied:
    """The zips on this worker's ``sys.path``."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.paths: list[str] = []
        self.texts: dict[str, bytes] = {}  #: sources by name in the zip, of all of them


_applied = _Applied()


def is_applied(key: str) -> bool:
    """Whether this process can import the code with this key ("" always can)."""
    return not key or key in _applied.keys


def apply_code(key: str, data: bytes, folder: str | None = None) -> bool:
    """Make the modules of a zip importable here, before everything else.

    ``folder`` is where the zip is written; a fresh temporary one by default. Where a module of an
    earlier zip has other source now, every module of the earlier zips is dropped and the answer
    is True: functions unpickled before refer to the old code and must be unpickled anew.
    """
    if is_applied(key):
        return False
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        texts = {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}
    changed = any(_applied.texts.get(name, text) != text for name, text in texts.items())
    if changed:
        _drop_applied()
    path = os.path.join(folder or tempfile.mkdtemp(prefix="firepool-code-"), f"{key}.zip")
    with open(f"{path}.part", "wb") as file:
        file.write(data)
    os.replace(f"{path}.part", path)
    _drop_shadowed(texts)
    _extend_packages(texts, path)
    sys.path.insert(0, path)
    importlib.invalidate_caches()
    _applied.keys.add(key)
    _applied.paths.append(path)
    _applied.texts.update(texts)
    return changed


def _drop_applied() -> None:
    """Forget the earlier zips and all that was imported from them."""
    for name in [_module_name(name) for name in _applied.texts]:
        sys.modules.pop(name, None)
    for path in _applied.paths:
        if path in sys.path:
            sys.path.remove(path)
        sys.path_importer_cache.pop(path, None)
    _applied.keys.clear()
    _applied.paths.clear()
    _applied.texts.clear()


def _module_name(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _drop_shadowed(texts: dict[str, bytes]) -> None:
    """Drop loaded modules of the same names whose source differs: the caller's win.

    One with the same source stays (a preloaded module must not be imported twice).
    """
    for zip_name, text in texts.items():
        name = _module_name(zip_name)
        module = sys.modules.get(name)
        if module is None or name in _NEVER_SHIPPED or _applied.texts.get(zip_name) == text:
            continue
        source = _read(getattr(module, "__file__", None) or "", module, None)
        if source is None or source.text != text:
            del sys.modules[name]


def _extend_packages(texts: dict[str, bytes], path: str) -> None:
    """Packages that stay loaded find the new zip's further submodules too."""
    for zip_name in texts:
        parent = _module_name(zip_name).rpartition(".")[0]
        search = getattr(sys.modules.get(parent), "__path__", None)
        entry = os.path.join(path, parent.replace(".", os.sep))
        if isinstance(search, list) and entry not in search:
            search.append(entry)
