"""A text from a public https:// URL, within limits of size and time. Private addresses are never connected to."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable

import httpx

from dflash_deploy.errors import BadInput, DownloadFailed
from dflash_deploy.intake.answers import Answer, fetch_answer, new_client
from dflash_deploy.intake.files import MIB
from dflash_deploy.intake.parse import Invalid, printable

SECONDS = 30  # until the whole text is there, for each redirect
MOST_REDIRECTS = 5

Resolve = Callable[[str], Iterable[str]]  # the addresses of a host name


def addresses_of(host: str) -> tuple[str, ...]:
    """The addresses of a host name; none if it has none."""
    try:
        return tuple(str(entry[4][0]) for entry in socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return ()


def fetch_text(
    url: str, *, limit: int = MIB, resolve: Resolve = addresses_of, transport: httpx.BaseTransport | None = None
) -> str:
    """The text behind a URL of at most `limit` bytes. Proxies of the environment are not used.

    Raises BadInput if the URL, or one that it redirects to, is not https:// to a public address, or if it is a web
    page; DownloadFailed if the server does not send it.
    """
    with new_client(trust_env=False, transport=transport, event_hooks={"response": [_check_peer]}) as client:
        for _ in range(MOST_REDIRECTS + 1):
            checked = _checked(url, resolve)
            try:
                answer = fetch_answer(client, httpx.Request("GET", checked), seconds=SECONDS, limit=limit)
            except (httpx.HTTPError, Invalid) as problem:
                raise _failed(checked, str(problem) or type(problem).__name__) from None
            if answer.status not in {301, 302, 303, 307, 308}:
                return _text(answer)
            url = str(checked.join(answer.headers.get("location", "")))
    raise _failed(checked, f"more than {MOST_REDIRECTS} redirects")


def _text(answer: Answer) -> str:
    if not answer.succeeded:
        raise _failed(answer.url, f"status {answer.status}")
    if answer.headers.get("content-type", "").lower().startswith("text/html"):
        raise BadInput(f"{answer.url.host} sent a web page, not a file", hint="name the raw file behind it")
    return answer.text


def _checked(url: str, resolve: Resolve) -> httpx.URL:
    """The URL, if it is one of a public host. Raises BadInput."""
    try:
        read = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        read = httpx.URL("")
    if read.scheme != "https" or not read.host or read.userinfo:
        raise BadInput(
            f"`{printable(url)}` is not an https:// URL without credentials", hint="save it, and name the file"
        )
    _refuse_private(read.host, resolve(read.host) if not _is_address(read.host) else (read.host,))
    return read


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _refuse_private(host: str, addresses: Iterable[str]) -> None:
    """Raise BadInput if one of the addresses is not public: a router, another service, this machine."""
    from dflash_deploy.serve.gateway.fetch import is_public  # noqa: PLC0415 - aiohttp, needed for a URL only

    private = [one for one in addresses if not is_public(one.partition("%")[0])]
    if private:
        named = printable(host) if host == private[0] else f"{printable(host)} ({private[0]})"
        raise BadInput(f"{named} is not a public address", hint="save it, and name the file")


def _check_peer(response: httpx.Response) -> None:
    """Check the address that was connected to: a name may have another one than a moment ago."""
    stream = response.extensions.get("network_stream")
    peer = stream.get_extra_info("server_addr") if stream is not None else None
    if peer:
        _refuse_private(response.url.host, (str(peer[0]),))


def _failed(url: httpx.URL, said: str) -> DownloadFailed:
    return DownloadFailed(
        f"{url.host} did not send the file: {said}", hint="check the URL, or save it and name the file"
    )
