"""Reading traces: rows, selection, spreading, and messages that name the line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from firepool_ray.errors import TraceError
from firepool_ray.sim.traces import TraceJob, outline, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def test_rows_become_jobs(path: Path) -> None:
    path.write_text("caller,start_s,duration_s\na,0,1.5\nb,2.25,3\n")
    assert list(read(path)) == [TraceJob("a", 0.0, 1.5), TraceJob("b", 2.25, 3.0)]


def test_columns_in_any_order_and_unknown_ones_ignored(path: Path) -> None:
    path.write_text(
        "tool,gpus,duration_s,queue,start_s,caller,profile\nx,0.5,1,rl,4,a,small\n\n"
        "y,2,1,rl,5,a,large\n"
    )
    assert list(read(path)) == [
        TraceJob("a", 4.0, 1.0, "small", "rl", 0.5),
        TraceJob("a", 5.0, 1.0, "large", "rl", 2.0),
    ]


def test_without_a_profile_the_gpus_name_it(path: Path) -> None:
    path.write_text("caller,start_s,duration_s,gpus\na,0,1,1\na,1,1,2\na,2,1,0.5\n")
    assert [job.profile for job in read(path)] == ["gpu", "gpu2", "gpu0.5"]


def test_where_selects_rows(path: Path) -> None:
    path.write_text("caller,start_s,duration_s,tool\na,0,1,Bash\na,1,1,Read\nb,2,1,Bash\n")
    assert [job.start_s for job in read(path, where={"tool": "Bash"})] == [0.0, 2.0]
    assert list(read(path, where={"tool": "Bash", "caller": "c"})) == []


def test_spread_moves_each_caller_as_a_whole(path: Path) -> None:
    path.write_text("caller,start_s,duration_s\na,0,1\na,10,1\nb,0,1\nb,7,1\n")
    jobs = list(read(path, spread_s=100.0, seed=3))
    assert [job.start_s for job in jobs] == sorted(job.start_s for job in jobs)
    by_caller = {name: [j.start_s for j in jobs if j.caller == name] for name in ("a", "b")}
    assert by_caller["a"][1] - by_caller["a"][0] == pytest.approx(10)
    assert by_caller["b"][1] - by_caller["b"][0] == pytest.approx(7)
    assert by_caller["a"][0] != by_caller["b"][0]
    assert jobs == list(read(path, spread_s=100.0, seed=3))
    assert jobs != list(read(path, spread_s=100.0, seed=4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("caller,start\n", "line 1: no column start_s, duration_s"),
        ("caller,start_s,duration_s,caller\n", "the column 'caller' is there twice"),
        ("caller,start_s,duration_s\na,0\n", "line 2: 2 values, but the header has 3 columns"),
        ("caller,start_s,duration_s\na,0,1\na,x,1\n", "line 3: start_s is 'x'"),
        ("caller,start_s,duration_s\na,nan,1\n", "line 2: start_s is 'nan'"),
        ("caller,start_s,duration_s\na,0,-1\n", "line 2: duration_s is -1"),
        ("caller,start_s,duration_s\n ,0,1\n", "line 2: the caller is empty"),
        ("caller,start_s,duration_s,gpus\na,0,1,-2\n", "line 2: gpus is -2"),
        ("caller,start_s,duration_s,queue\na,0,1,a b\n", "line 2: queue name 'a b' is not allowed"),
        ("caller,start_s,duration_s\na,5,1\nb,4,1\n", "line 3: start_s 4 is before the row above"),
    ],
)
def test_mistakes_name_the_line_and_the_remedy(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        list(read(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read the trace"):
        list(read(tmp_path / "missing.csv"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80caller")
    with pytest.raises(TraceError, match="not a CSV file in UTF-8"):
        list(read(tmp_path / "binary.csv"))


def test_where_must_name_a_column(path: Path) -> None:
    path.write_text("caller,start_s,duration_s\n")
    with pytest.raises(TraceError, match="the columns are caller, start_s, duration_s"):
        list(read(path, where={"tool": "Bash"}))


def test_the_file_is_read_row_by_row(path: Path) -> None:
    with path.open("w") as file:
        file.write("caller,start_s,duration_s\n")
        for number in range(50_000):
            file.write(f"c{number % 7},{number},1\n")
        file.write("broken\n")
    jobs = read(path)
    assert [next(jobs).start_s for _ in range(3)] == [0.0, 1.0, 2.0]
    with pytest.raises(TraceError, match="line 50002"):
        list(jobs)


def test_outline() -> None:
    chance = random.Random(1)
    jobs = [TraceJob(f"c{i % 3}", float(i), chance.random(), queue="q") for i in range(9)]
    jobs.append(TraceJob("d", 9.0, 10.0, "big", "q", 4.0))
    seen = outline(iter(jobs))
    assert (seen.jobs, seen.begin_s, seen.end_s) == (10, 0.0, 19.0)
    assert seen.profiles == {"gpu": 1.0, "big": 4.0}
    assert list(seen.queues) == ["q"]
    assert seen.callers == {("q", "c0"): 3, ("q", "c1"): 3, ("q", "c2"): 3, ("q", "d"): 1}
    assert seen.busy_gpu_s == pytest.approx(40.0 + sum(job.duration_s for job in jobs[:9]))


def test_a_profile_has_one_size() -> None:
    with pytest.raises(TraceError, match="profile 'gpu' have 1 and 2 GPUs"):
        outline(iter([TraceJob("a", 0, 1), TraceJob("a", 1, 1, gpus=2.0)]))
