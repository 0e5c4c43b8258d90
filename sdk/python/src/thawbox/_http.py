# SPDX-License-Identifier: Apache-2.0
"""Sends requests by httpx, synchronously and asynchronously; what goes wrong on the way becomes an error of ours."""
from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, NoReturn, TypeVar

import httpx

from . import _wire
from ._daemon import Endpoint
from ._errors import HostNotReady, TimeoutError_
from ._wire import READ_SECONDS, Answer, Call, Cut, Stream

T = TypeVar("T")

_TIMEOUT = httpx.Timeout(READ_SECONDS, connect=10.0, pool=None)
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30.0)


def _options(endpoint: Endpoint) -> dict[str, Any]:
    # A context for TLS costs tens of milliseconds: none is made where none is used.
    is_tls = endpoint.url.startswith("https://")
    return {"base_url": endpoint.url, "timeout": _TIMEOUT, "trust_env": not endpoint.is_local, "verify": is_tls,
            "headers": {"X-API-KEY": endpoint.key, "User-Agent": "thawbox-python"}}


def _request(call: Call[Any] | Stream[Any]) -> dict[str, Any]:
    if isinstance(call, Stream):
        body: dict[str, Any] = {"content": call.content}
    elif call.content is not None:
        body = {"content": call.content}
    else:
        body = {"json": call.body} if call.body is not None else {}
    return {"method": call.method, "url": call.path, "headers": dict(call.headers), **body}


def _fail(error: httpx.HTTPError, endpoint: Endpoint) -> NoReturn:
    where = endpoint.uds or endpoint.url
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        raise HostNotReady(f"no daemon answers at {where}: {error}",
                           "start one (`thawbox up`), or unset THAWBOX_URL to have one started", code="no_daemon") from error
    if isinstance(error, httpx.TimeoutException):
        raise TimeoutError_(f"the daemon at {where} did not answer in {READ_SECONDS:g} s", code="no_answer") from error
    raise Cut from error


class SyncHttp:
    """A pool of connections to one daemon. Any thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        transport = httpx.HTTPTransport(uds=endpoint.uds, limits=_LIMITS, verify=False) if endpoint.uds else None
        self._client = httpx.Client(transport=transport, limits=_LIMITS, **_options(endpoint))

    def send(self, call: Call[T]) -> T:
        try:
            response = self._client.request(**_request(call))
        except httpx.HTTPError as error:
            _fail(error, self.endpoint)
        return call.parse(Answer(response.status_code, response.content, response.headers))

    @contextmanager
    def stream(self, stream: Stream[Any]) -> Iterator[Iterator[bytes]]:
        """What goes wrong is told where it is read; what the reader does wrong by himself is none of ours."""
        try:
            response = self._client.send(self._client.build_request(**_request(stream)), stream=True)
        except httpx.HTTPError as error:
            _fail(error, self.endpoint)
        with closing(response):
            if response.status_code != 200:
                _wire.check(Answer(response.status_code, b"".join(self._pieces(response))))
            yield self._pieces(response)

    def _pieces(self, response: httpx.Response) -> Iterator[bytes]:
        try:
            yield from response.iter_bytes()
        except httpx.HTTPError as error:
            _fail(error, self.endpoint)

    def close(self) -> None:
        self._client.close()


_lock = threading.Lock()
_shared: dict[tuple[int, Endpoint], SyncHttp] = {}


def shared(endpoint: Endpoint) -> SyncHttp:
    """The pool that all sandboxes of this process at an address use."""
    key = (os.getpid(), endpoint)
    with _lock:
        if key not in _shared:
            _shared[key] = SyncHttp(endpoint)
        return _shared[key]


class AsyncHttp:
    """The same for one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        transport = httpx.AsyncHTTPTransport(uds=endpoint.uds, limits=_LIMITS, verify=False) if endpoint.uds else None
        self._client = httpx.AsyncClient(transport=transport, limits=_LIMITS, **_options(endpoint))

    async def send(self, call: Call[T]) -> T:
        request = _request(call)
        if call.content is not None and not isinstance(call.content, bytes):
            request["content"] = _in_pieces(call.content)
        try:
            response = await self._client.request(**request)
        except httpx.HTTPError as error:
            _fail(error, self.endpoint)
        return call.parse(Answer(response.status_code, response.content, response.headers))

    @asynccontextmanager
    async def stream(self, stream: Stream[Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            response = await self._client.send(self._client.build_request(**_request(stream)), stream=True)
        except httpx.HTTPError as error:
            _fail(error, self.endpoint)
        try:
            if response.status_code != 200:
                _wire.check(Answer(response.status_code, b"".join([piece async for piece in self._pieces(response)])))
            yield self._pieces(response)
        finally:
            await response.aclose()

    async def _pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for piece in response.aiter_bytes():
                yield piece
        except httpx.HTTPError as error:
            _fail(error, self.endpoint)

    @property
    def is_closed(self) -> bool:
        return self._client.is_closed

    async def close(self) -> None:
        await self._client.aclose()


async def _in_pieces(content: Any) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece
