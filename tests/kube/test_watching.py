"""A collection kept current by one watch: what it shows, when it says that it may be stale."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from firepool_ray.errors import KubeError
from firepool_ray.kube import watching
from firepool_ray.kube.api import CONFIG_MAP
from firepool_ray.kube.watching import Watched
from tests.kube.fakes import FakeKube


def item(name: str, value: str = "") -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "default"}, "data": {"value": value}}


def eventually(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


@pytest.fixture
def heard() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def watched(
    kube: FakeKube, heard: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Watched]:
    monkeypatch.setattr(watching, "BACKOFF_S", 0.01)
    kube.put(CONFIG_MAP, item("a"))
    found = Watched(
        kube,  # type: ignore[arg-type]
        CONFIG_MAP,
        on_change=lambda change, found: heard.append((change, found["metadata"]["name"])),
    )
    assert found.age_s() == float("inf")
    found.start()
    assert found.wait_ready(10)
    yield found
    found.stop()
    kube.end_watches()


def test_it_lists_once_and_then_follows(
    kube: FakeKube, watched: Watched, heard: list[tuple[str, str]]
) -> None:
    kube.put(CONFIG_MAP, item("b"))
    kube.put(CONFIG_MAP, item("a", "new"))
    eventually(lambda: watched.get("b") and watched.get("a")["data"]["value"] == "new")  # type: ignore[index]
    kube.remove(CONFIG_MAP, "b")
    eventually(lambda: watched.get("b") is None)
    assert heard[0] == ("ADDED", "a")
    assert heard[-1] == ("DELETED", "b")
    assert [name for name in kube.requests if name.startswith("list")] == ["list configmaps"]
    assert watched.age_s() == 0.0


def test_a_watch_that_ended_goes_on_where_it_stood(kube: FakeKube, watched: Watched) -> None:
    kube.put(CONFIG_MAP, item("b"))
    eventually(lambda: watched.get("b"))
    kube.end_watches()
    kube.put(CONFIG_MAP, item("c"))
    eventually(lambda: watched.get("c"))
    assert kube.requests[-1] == "watch configmaps from 2"
    assert kube.requests.count("list configmaps") == 1


def test_too_old_lists_again_and_tells_what_was_missed(
    kube: FakeKube, watched: Watched, heard: list[tuple[str, str]]
) -> None:
    kube.put(CONFIG_MAP, item("b"))
    eventually(lambda: watched.get("b"))
    kube.remove(CONFIG_MAP, "a", silent=True)
    kube.break_watches(KubeError("too old", 410))
    eventually(lambda: watched.get("a") is None)
    assert heard[-1] == ("DELETED", "a")
    assert watched.error == ""


def test_what_cannot_be_read_keeps_its_last_value_and_grows_old(
    kube: FakeKube, watched: Watched
) -> None:
    kube.failure = KubeError("the API server does not answer")
    kube.break_watches(kube.failure)
    eventually(lambda: watched.error)
    assert watched.get("a") is not None
    first = watched.age_s()
    eventually(lambda: watched.age_s() > first > 0)
    kube.failure = None
    kube.put(CONFIG_MAP, item("b"))
    eventually(lambda: watched.get("b"))
    assert (watched.error, watched.age_s()) == ("", 0.0)


def test_a_watch_that_stands_again_is_current_though_nothing_happens(
    kube: FakeKube, watched: Watched
) -> None:
    kube.failure = KubeError("the API server does not answer")
    kube.break_watches(kube.failure)
    eventually(lambda: watched.error)
    kube.failure = None
    eventually(lambda: not watched.error)
    assert watched.age_s() == 0.0


def test_after_an_answer_the_pauses_are_short_again(
    kube: FakeKube, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a quiet watch breaks: what happens meanwhile is noticed late otherwise."""
    pauses: list[float] = []
    wait = watched._stopped.wait
    monkeypatch.setattr(watched._stopped, "wait", lambda s: pauses.append(s) or wait(s))
    for number in range(4):
        kube.break_watches(KubeError("broken"))
        eventually(lambda n=number: len(pauses) > n and not watched.error)  # type: ignore[misc]
        eventually(lambda: kube.watching("configmaps"))
    assert pauses == [0.01] * 4


def test_a_server_that_closes_every_watch_is_not_stormed(
    kube: FakeKube, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "BACKOFF_S", 0.2)
    began = time.monotonic()
    for _ in range(3):
        eventually(lambda: kube.watching("configmaps"))
        kube.end_watches()
    assert time.monotonic() - began >= 0.4
