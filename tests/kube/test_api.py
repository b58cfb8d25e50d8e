"""The connection itself, against a server that speaks HTTP: what waiting for it may cost."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator

import pytest
from kubernetes import client

from firepool_ray.errors import KubeError
from firepool_ray.kube import api
from firepool_ray.kube.api import CONFIG_MAP, Kube

ITEM = {"metadata": {"name": "a", "namespace": "default", "resourceVersion": "2"}}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers a watch at once, and says something only after ``quiet_s``."""

    quiet_s = 0.0

    def do_GET(self) -> None:
        if "watch=1" not in self.path:
            time.sleep(self.quiet_s)
        self.send_response(200)
        self.end_headers()
        self.wfile.flush()
        if "watch=1" in self.path:
            time.sleep(self.quiet_s)
        self.wfile.write(json.dumps({"type": "ADDED", "object": ITEM}).encode() + b"\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kube]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = client.Configuration(host=f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(api, "CALL_S", 0.2)
    yield Kube(client.ApiClient(settings), "default")
    server.shutdown()
    server.server_close()


def test_a_quiet_watch_stands(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than one answer may take: nothing happens in a quiet cluster."""
    monkeypatch.setattr(Handler, "quiet_s", 0.6)
    assert list(kube.watch(CONFIG_MAP, "1", timeout_s=30)) == [("ADDED", ITEM)]


def test_a_watch_that_died_in_silence_is_noticed(
    kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "quiet_s", 2.0)
    changes = kube.watch(CONFIG_MAP, "1", timeout_s=0.2)
    with pytest.raises(KubeError, match="broke"):
        list(changes)


def test_an_answer_that_does_not_come_is_an_error(
    kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "quiet_s", 2.0)
    with pytest.raises(KubeError, match="does not answer"):
        kube.list(CONFIG_MAP)
