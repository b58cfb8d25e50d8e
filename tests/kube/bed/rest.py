"""The API server in plain dicts: what the kubelets and ``Bed.apply`` use.

Tests use the kubernetes client; this one is here because it is quick on two cores and because it
says who it is, so that the audit log tells the bed's own requests from those under test.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3

Object = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
_AGAIN_S = 0.3


class ApiError(Exception):
    """The API server said no; with status 0 it said nothing."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Rest:
    """A connection as one user. Safe to share between threads.

    A call is repeated for ``patience_s`` while the server cannot be reached or is not well: as
    kubelets do, who outlive it. In the end that is an ``ApiError``, too.
    """

    def __init__(
        self, server: str, ca: Path, token: str, agent: str, patience_s: float = 0.0
    ) -> None:
        self._server = server
        self._patience_s = patience_s
        self._closed = False
        headers = {"Authorization": f"Bearer {token}", "User-Agent": agent}
        self._pool = urllib3.PoolManager(ca_certs=str(ca), headers=headers, maxsize=40)
        self._plurals: dict[str, dict[str, tuple[str, bool]]] = {}

    def get(self, path: str, timeout_s: float = 15.0) -> Object:
        return self._call("GET", path, timeout_s=timeout_s)

    def post(self, path: str, body: Mapping[str, Any]) -> Object:
        return self._call("POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any], how: str = MERGE) -> Object:
        return self._call("PATCH", path, body, how)

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> Object:
        return self._call("DELETE", path, body)

    def watch(self, path: str, version: str) -> Iterator[tuple[str, Object]]:
        """Changes after a resource version, until the server ends the watch."""
        query = f"{path}?watch=1&resourceVersion={version}&timeoutSeconds=300"
        reply = self._pool.request(
            "GET",
            self._server + query,
            preload_content=False,
            timeout=urllib3.Timeout(connect=5, read=310),
            retries=False,
        )
        try:
            if reply.status != 200:
                raise ApiError(reply.status, reply.read().decode(errors="replace"))
            rest = b""
            for chunk in reply.stream(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"].get("code", 500), str(event["object"]))
                    yield event["type"], event["object"]
        finally:
            reply.close()

    def path_of(self, manifest: Mapping[str, Any]) -> str:
        """Where an object of this kind and name lives."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if kind not in self._plurals.get(version, {}):
            self._plurals[version] = {
                found["kind"]: (found["name"], found["namespaced"])
                for found in self.get(base)["resources"]
                if "/" not in found["name"]
            }
        if kind not in self._plurals[version]:
            raise ApiError(404, f"no kind {kind} in {version}")
        plural, namespaced = self._plurals[version][kind]
        meta = manifest["metadata"]
        space = f"/namespaces/{meta.get('namespace', 'default')}" if namespaced else ""
        return f"{base}{space}/{plural}/{meta['name']}"

    def apply(self, manifest: Mapping[str, Any], timeout_s: float = 15.0) -> Object:
        """Creates the object or changes what the manifest says of it.

        A kind whose definition is only just there is waited for.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                path = self.path_of(manifest) + "?fieldManager=bed&force=true"
                return self.patch(path, manifest, APPLY)
            except ApiError as error:
                if error.status != 404 or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def close(self) -> None:
        """Nothing is repeated any more."""
        self._closed = True

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
        timeout_s: float = 15.0,
    ) -> Object:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return self._call_once(method, path, body, content, timeout_s)
            except ApiError as error:
                well = 0 < error.status < 500
                if well or self._closed or time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN_S)

    def _call_once(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        content: str,
        timeout_s: float,
    ) -> Object:
        headers = {**self._pool.headers, "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        try:
            reply = self._pool.request(
                *(method, self._server + path),
                body=data,
                headers=headers,
                timeout=timeout_s,
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"not reached: {error}") from error
        if reply.status >= 400:
            raise ApiError(reply.status, _message(reply.data))
        try:
            return json.loads(reply.data)
        except ValueError:
            return {"text": reply.data.decode(errors="replace")}


def follow(rest: Rest, path: str, on: Callable[[str, Object], None], stop: threading.Event) -> None:
    """Lists a collection and calls ``on`` with every change, until ``stop``.

    A list is told as ``LIST`` with the whole collection, so that what went missing is noticed.
    """
    while not stop.is_set():
        try:
            listed = rest.get(path)
            on("LIST", listed)
            version = listed["metadata"]["resourceVersion"]
            while not stop.is_set():
                for kind, found in rest.watch(path, version):
                    version = found["metadata"]["resourceVersion"]
                    on(kind, found)
        except (ApiError, urllib3.exceptions.HTTPError):
            stop.wait(_AGAIN_S)


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError):
        return data.decode(errors="replace")[:500]
