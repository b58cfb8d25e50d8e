"""The caller's own modules: what is shipped, and how a worker imports and replaces it.

Each test runs the worker's half, and where the script matters the client's half too, in a fresh
interpreter: importing and dropping modules must not reach into the test process.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import threading
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from firepool_ray.binding import code

ROOT = Path(__file__).parents[2]


def run_python(script: str, *args: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *args],
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_script(path: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, str(path), *args],
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


BUILD = """
import pickle, sys
from firepool_ray.binding.code import build_code
built = build_code()
with open(sys.argv[1], "wb") as file:
    pickle.dump(tuple(built), file)
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def build_in(folder: Path, main: str, files: dict[str, str], out: Path) -> tuple[str, bytes]:
    write(folder, {**files, "main.py": textwrap.dedent(main) + BUILD})
    run_script(folder / "main.py", str(out))
    return pickle.loads(out.read_bytes())


def names(data: bytes) -> list[str]:
    return [name for name in zipfile.ZipFile(BytesIO(data)).namelist() if name[-1] != "/"]


def test_own_modules_and_their_siblings_are_packed_and_nothing_installed(tmp_path):
    key, data = build_in(
        tmp_path / "app",
        "import numpy, helper, pkg.sub",
        {
            "helper.py": "import json",
            "lazy.py": "X = 1",
            "pkg/__init__.py": "",
            "pkg/sub.py": "Y = 2",
            "pkg/unused.py": "Z = 3",
            "notes/readme.txt": "no code",
        },
        tmp_path / "out",
    )
    assert len(key) == 32
    assert names(data) == [
        "helper.py",
        "lazy.py",
        "pkg/__init__.py",
        "pkg/sub.py",
        "pkg/unused.py",
    ]


def test_modules_found_elsewhere_on_the_path_are_packed_when_loaded(tmp_path):
    write(tmp_path / "src", {"verifier.py": "A = 1", "unloaded.py": "B = 2"})
    _, data = build_in(
        tmp_path / "app",
        f"import sys; sys.path.append({str(tmp_path / 'src')!r}); import verifier",
        {},
        tmp_path / "out",
    )
    assert names(data) == ["verifier.py"]


def test_a_package_with_compiled_parts_is_left_out(tmp_path):
    main = """
    import sys, types, half
    from importlib.machinery import ModuleSpec
    module = types.ModuleType("half._fast")
    module.__spec__ = ModuleSpec("half._fast", None, origin=half.__file__[:-11] + "_fast.so")
    sys.modules["half._fast"] = module
    """
    _, data = build_in(tmp_path / "src", main, {"half/__init__.py": ""}, tmp_path / "out")
    assert "half/__init__.py" in names(data)  # beside the script: it is offered whole ...
    write(tmp_path / "lib", {"half/__init__.py": ""})
    moved = f"import sys; sys.path.append({str(tmp_path / 'lib')!r})\n" + textwrap.dedent(main)
    _, data = build_in(tmp_path / "app", moved, {}, tmp_path / "out")
    assert data == b""


def test_nothing_to_ship_is_no_code():
    assert code.build_code([]) == code.NO_CODE == ("", b"")
    assert code.is_applied("")


def test_equal_sources_make_equal_zips(tmp_path):
    files = {"helper.py": "A = 1\n", "pkg/__init__.py": ""}
    first = build_in(tmp_path / "a", "import helper", files, tmp_path / "out1")
    second = build_in(tmp_path / "b", "import helper", files, tmp_path / "out2")
    assert first == second


def test_a_changed_file_is_noticed(tmp_path):
    write(tmp_path, {"helper.py": "A = 1\n"})
    out = run_python(
        """
        import os, sys, time
        sys.path.insert(0, os.getcwd())
        import helper
        from firepool_ray.binding import code
        code.RECHECK_S = 0.0
        first = code.build_code()
        assert code.build_code() is first
        with open("helper.py", "w") as file:
            file.write("A = 2222\\n")
        second = code.build_code()
        print(first.key != second.key, b"" != second.data)
        """,
        cwd=tmp_path,
    )
    assert out == "True True"


APPLY = """
import pickle, sys
from firepool_ray.binding import code
def apply(path):
    return code.apply_code(*pickle.load(open(path, "rb")), sys.argv[1])
"""


def apply_and(script: str, tmp_path: Path, *args: str) -> str:
    return run_python(APPLY + textwrap.dedent(script), str(tmp_path), *args)


def test_a_worker_imports_modules_packages_and_namespaces(tmp_path):
    build_in(
        tmp_path / "app",
        "import helper, pkg.sub, space.deep.leaf",
        {
            "helper.py": "def f(): return 'helped'",
            "pkg/__init__.py": "",
            "pkg/sub.py": "from . import lazy",
            "pkg/lazy.py": "V = 'lazy'",
            "space/deep/leaf.py": "V = 'leaf'",
        },
        tmp_path / "out",
    )
    out = apply_and(
        """
        dropped = apply(sys.argv[2])
        import helper, pkg.sub, space.deep.leaf, inspect
        print(dropped, helper.f(), pkg.sub.lazy.V, space.deep.leaf.V)
        print(inspect.getsource(helper.f).strip())
        print(apply(sys.argv[2]))
        """,
        tmp_path,
        str(tmp_path / "out"),
    )
    assert out.splitlines() == [
        "False helped lazy leaf",
        "def f(): return 'helped'",
        "False",
    ]


def test_changed_source_drops_the_older_modules(tmp_path):
    for version in ("1", "2"):
        build_in(
            tmp_path / version,
            "import helper, user",
            {"helper.py": f"V = {version}", "user.py": "import helper; V = helper.V"},
            tmp_path / f"out{version}",
        )
    out = apply_and(
        """
        apply(sys.argv[2])
        import user
        before = user.V
        dropped = apply(sys.argv[3])
        import user
        print(before, dropped, user.V, sum("firepool" in p or p.endswith(".zip") for p in sys.path))
        """,
        tmp_path,
        str(tmp_path / "out1"),
        str(tmp_path / "out2"),
    )
    assert out.split()[:3] == ["1", "True", "2"]


def test_added_modules_leave_the_loaded_ones_alone(tmp_path):
    files = {"pkg/__init__.py": "", "pkg/a.py": "class A: pass"}
    build_in(tmp_path / "app", "import pkg.a", files, tmp_path / "out1")
    build_in(
        tmp_path / "app",
        "import pkg.b",
        {"pkg/b.py": "from pkg.a import A"},
        tmp_path / "out2",
    )
    out = apply_and(
        """
        apply(sys.argv[2])
        from pkg.a import A
        dropped = apply(sys.argv[3])
        import pkg.b
        print(dropped, pkg.b.A is A, apply(sys.argv[2]))
        """,
        tmp_path,
        str(tmp_path / "out1"),
        str(tmp_path / "out2"),
    )
    assert out == "False True False"


def test_a_loaded_module_of_the_same_name_gives_way_unless_it_is_the_same(tmp_path):
    build_in(
        tmp_path / "app",
        "import utils, shared",
        {"utils.py": "V = 'mine'", "shared.py": "V = 'same'"},
        tmp_path / "out",
    )
    write(tmp_path / "image", {"utils.py": "V = 'other'", "shared.py": "V = 'same'"})
    out = apply_and(
        """
        sys.path.insert(0, sys.argv[3])
        import utils, shared
        kept = shared
        apply(sys.argv[2])
        import utils, shared
        print(utils.V, shared is kept)
        """,
        tmp_path,
        str(tmp_path / "out"),
        str(tmp_path / "image"),
    )
    assert out == "mine True"


def test_a_worker_ships_on_what_it_was_sent(tmp_path):
    """Nested work: a job's own submits carry the same code, lazy modules included."""
    key, _ = build_in(
        tmp_path / "app", "import helper", {"helper.py": "", "lazy.py": ""}, tmp_path / "out"
    )
    out = apply_and(
        "apply(sys.argv[2]); import helper; print(code.build_code().key)",
        tmp_path,
        str(tmp_path / "out"),
    )
    assert out == key


@pytest.mark.parametrize("path", [sys.executable, pytest.__file__, pickle.__file__, code.__file__])
def test_installed_files_are_not_the_callers_own(path):
    module = type(sys)("m")
    module.__spec__ = None
    module.__file__ = path
    module.__name__ = "firepool_ray.x" if path == code.__file__ else "m"
    if path != sys.executable:
        assert code.build_code([module]) == code.NO_CODE


def test_a_build_may_be_interrupted_by_another_of_the_same_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a signal handler that submits: a plain lock would wait for itself for ever."""
    builder = code._Builder()
    collect, nested = code._collect, []

    def interrupted(known: Any) -> Any:
        if not nested:
            nested.append(None)
            nested[0] = builder.build()
        return collect(known)

    monkeypatch.setattr(code, "_collect", interrupted)
    built: list[Any] = []
    thread = threading.Thread(target=lambda: built.append(builder.build()), daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert built == nested and built[0] is not None
