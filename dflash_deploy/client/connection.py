"""The connections to one endpoint: keys, certificates, time limits, and one request with its answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import httpx

from dflash_deploy.client.announced import CONNECT_TIMEOUT
from dflash_deploy.client.completion import EndpointError, refusal_of, unanswered
from dflash_deploy.intake import Invalid
from dflash_deploy.intake.answers import Answer, fetch_answer, new_client, trusting, trusting_none
from dflash_deploy.redact import Secret

if TYPE_CHECKING:
    from ssl import SSLContext

    import aiohttp

ANSWER_TIMEOUT = 180.0
"""Seconds for a whole answer: the first request after a start may compile kernels for more than 30 s."""

QUEUE_TIMEOUT = 900.0
"""Seconds without a byte under load: requests wait for each other before their first token."""

LOAD_TIMEOUT = 3600.0
"""Seconds for a whole request under load: it ends a stream that would never end."""


class Connection:
    """The connections to a URL, with its key. Use as a context manager; `model` is the served name."""

    def __init__(
        self,
        url: str,
        key: Secret,
        model: str,
        *,
        timeout: float = ANSWER_TIMEOUT,
        proxies: bool = False,
        root: Path | None = None,
    ) -> None:
        """`proxies`: use the proxies of the environment, which an endpoint of this machine does not need.

        `root`: the certificate of a private authority, in place of the public ones. Raises SettingsRefused if it
        cannot be read.
        """
        self.url = url.rstrip("/")
        self.model = model
        self._key = key
        self._proxies = proxies
        self._timeout = timeout
        limits = httpx.Timeout(timeout, connect=CONNECT_TIMEOUT)
        # the engine limits a burst, not the client's default of 100 connections
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._trust = None if root is None else trusting(root)
        # a proxy may be asked over TLS
        plain = url.startswith("http://") and not proxies
        verify = self._trust or (trusting_none() if plain else True)
        how = {"base_url": self.url, "trust_env": proxies, "verify": verify}
        self._client = new_client(headers=self._authorization, timeout=limits, limits=pool, **how)
        self._keyless = new_client(timeout=CONNECT_TIMEOUT, **how)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key.reveal()}"} if self._key else {}

    def move(self, url: str) -> None:
        """Ask at another address from now on."""
        self.url = self._client.base_url = self._keyless.base_url = url.rstrip("/")

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
        self._keyless.close()

    def async_session(self, connections: int) -> aiohttp.ClientSession:
        """Return an aiohttp session with the same key, for `connections` requests at the same time.

        Call it in a running event loop. aiohttp takes less CPU time than httpx, which matters when the client measures
        an engine on the same cores.
        """
        import aiohttp  # noqa: PLC0415 - 0.2 s, needed under load only

        ssl: bool | SSLContext = True
        if self.url.startswith("https:"):
            ssl = self._trust or httpx.create_ssl_context(trust_env=self._proxies)
        timeout = aiohttp.ClientTimeout(total=LOAD_TIMEOUT, sock_connect=CONNECT_TIMEOUT, sock_read=QUEUE_TIMEOUT)
        return aiohttp.ClientSession(
            # with a slash, so that paths are relative to it: the URL of an endpoint may have a path
            f"{self.url}/",
            headers={**self._authorization, "Content-Type": "application/json", "Accept-Encoding": "identity"},
            connector=aiohttp.TCPConnector(limit=connections, ssl=ssl),
            timeout=timeout,
            trust_env=self._proxies,
        )

    def send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Answer:
        """Return the answer of a request with a 2xx status. Raises EndpointError for every other one."""
        try:
            try:
                answer = self._fetch(method, path, body)
            except httpx.RemoteProtocolError:
                # the server may close an idle connection just when it is used again; the second request opens a new one
                answer = self._fetch(method, path, body)
        except Invalid as problem:
            raise EndpointError(f"{method} {path} returned an unexpected answer: it {problem}") from None
        except httpx.HTTPError as problem:
            raise unanswered(f"{method} {path} got no answer", problem) from problem
        if not answer.succeeded:
            raise refusal_of(method, answer.url.path, answer.status, answer.text)
        return answer

    def _fetch(self, method: str, path: str, body: Mapping[str, object] | None) -> Answer:
        request = self._client.build_request(method, path, json=body)
        return fetch_answer(self._client, request, seconds=self._timeout)
