"""A recipe behind a URL: https:// to public addresses only, also after redirects."""

import httpx
import pytest

from dflash_deploy.errors import BadInput, DownloadFailed
from dflash_deploy.intake.web import fetch_text

PUBLIC = {
    "example.com": ("93.184.216.34",),
    "other.example": ("1.1.1.1",),
    "router.example": ("1.1.1.1", "192.168.1.1"),
}


def fetched(url: str, answers: dict[str, httpx.Response], seen: list[str] | None = None) -> str:
    def answer(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(str(request.url))
        return answers[str(request.url)]

    return fetch_text(url, limit=100, resolve=lambda host: PUBLIC.get(host, ()), transport=httpx.MockTransport(answer))


def sent(status: int, text: str = "", **headers: str) -> httpx.Response:
    return httpx.Response(status, headers=headers, stream=httpx.ByteStream(text.encode()))


def moved(place: str) -> httpx.Response:
    return sent(302, location=place)


def test_a_text_is_fetched_also_behind_a_redirect() -> None:
    answers = {"https://example.com/a": moved("/b"), "https://example.com/b": sent(200, "vllm serve x")}
    assert fetched("https://example.com/a", answers) == "vllm serve x"


@pytest.mark.parametrize(
    "place",
    [
        "http://example.com/",
        "file:///etc/passwd",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://10.0.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://[64:ff9b::a9fe:a9fe]/latest/meta-data",
        "https://[2002:a9fe:a9fe::]/latest/meta-data",
        "https://0.0.0.0/",
        "https://router.example/",
        "https://user:word@example.com/",
        "ftp://example.com/x",
    ],
)
def test_neither_a_url_nor_a_redirect_leads_to_a_private_place(place: str) -> None:
    with pytest.raises(BadInput):
        fetched(place, {})
    seen: list[str] = []
    with pytest.raises(BadInput):
        fetched("https://example.com/a", {"https://example.com/a": moved(place)}, seen)
    assert seen == ["https://example.com/a"]


def test_a_name_that_has_another_address_when_it_is_connected_to_is_refused() -> None:
    class Stream:
        def get_extra_info(self, name: str) -> object:
            return ("127.0.0.1", 443)

    rebound = httpx.Response(200, text="x", extensions={"network_stream": Stream()})
    with pytest.raises(BadInput, match="not a public address"):
        fetched("https://example.com/a", {"https://example.com/a": rebound})


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (sent(404), DownloadFailed),
        (sent(200, "x" * 101), DownloadFailed),
        (sent(200, "<p>", **{"content-type": "text/html"}), BadInput),
    ],
)
def test_other_answers_are_refused(answer: httpx.Response, error: type[Exception]) -> None:
    with pytest.raises(error):
        fetched("https://example.com/a", {"https://example.com/a": answer})


def test_redirects_end() -> None:
    def around(request: httpx.Request) -> httpx.Response:
        return moved("/a")

    with pytest.raises(DownloadFailed, match="more than 5 redirects"):
        fetch_text("https://1.1.1.1/a", transport=httpx.MockTransport(around))
