"""Whether a registry has an image's tag, asked without an account and without pulling anything.

A registry that asks for a token names who gives it (`WWW-Authenticate: Bearer`), as Docker Hub, ghcr.io and nvcr.io do.
Source: the OCI distribution specification 1.1, and distribution.github.io/distribution/spec/auth/token.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from dflash_deploy.errors import SettingsRefused
from dflash_deploy.host.ask import has_image
from dflash_deploy.intake.answers import Answer, ForeignDocument, fetch_answer, new_client
from dflash_deploy.intake.parse import Invalid, printable
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.plan.result import Plan

SECONDS = 5.0  # for each answer; a network that drops packets takes it once
MOST_PAGES = 5  # of tags
DOCKER_HUB = "registry-1.docker.io"

_MANIFESTS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "docker.distribution.manifest.list.v2",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.v2",
    )
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class TagAnswer:
    """What a registry answers about a tag. `exists` is `None` if it did not say, and `problem` why.

    `nearest` is an existing tag with the closest version; empty if none is known.
    """

    registry: str
    exists: bool | None
    problem: str = ""
    nearest: str = ""

    def about(self, image: str) -> str:
        """The answer as a sentence about the image."""
        if self.exists is None:
            return f"{self.registry} did not say whether it has {image} ({self.problem})"
        return f"{self.registry} {'has' if self.exists else 'does not have'} {image}"


class _Token(ForeignDocument):
    token: str = ""
    access_token: str = ""


class _Tags(ForeignDocument):
    tags: list[str] | None = None


@dataclass(frozen=True)
class Reference:
    """The name of an image as Docker reads it: registry, repository, and tag or digest."""

    registry: str
    repository: str
    tag: str

    @classmethod
    def of(cls, image: str) -> Reference:
        """Read the name of an image."""
        named, _, digest = image.partition("@")
        first, _, rest = named.partition("/")
        is_host = bool(rest) and (first == "localhost" or "." in first or ":" in first)
        path = rest if is_host else named
        repository, _, tag = path.partition(":")
        if not is_host and "/" not in repository:
            repository = f"library/{repository}"
        hub = not is_host or first == "docker.io"
        return cls(DOCKER_HUB if hub else first, repository, digest or tag or "latest")

    @property
    def url(self) -> str:
        """Where the registry answers. As Docker, without TLS on this machine only."""
        host = self.registry.partition(":")[0]
        return f"{'http' if host in {'localhost', '127.0.0.1'} else 'https'}://{self.registry}/v2/{self.repository}"


def ask_tag(image: str) -> TagAnswer:
    """Ask an image's registry for its manifest, and for the tags that exist if the tag does not."""
    reference = Reference.of(image)
    try:
        with new_client(timeout=SECONDS) as client:
            return _asked(client, reference)
    except (httpx.HTTPError, httpx.InvalidURL, Invalid, SettingsRefused) as problem:
        return TagAnswer(reference.registry, None, printable(str(problem))[:120] or type(problem).__name__)


def _asked(client: httpx.Client, reference: Reference) -> TagAnswer:
    answer = _send(client, "HEAD", f"{reference.url}/manifests/{reference.tag}", accept=_MANIFESTS)
    if answer.status == 401 and (token := _token(client, answer, reference)):
        client.headers["Authorization"] = f"Bearer {token}"
        answer = _send(client, "HEAD", f"{reference.url}/manifests/{reference.tag}", accept=_MANIFESTS)
    if answer.succeeded:
        return TagAnswer(reference.registry, True)
    # a registry may also say 404 of what an account would see: it shows the tags of what it does not hide
    known = list(_tags(client, reference)) if answer.status == 404 else []
    if not known:
        return TagAnswer(reference.registry, None, f"status {answer.status}")
    return TagAnswer(reference.registry, False, nearest=nearest_tag(reference.tag, known))


def _send(client: httpx.Client, method: str, url: str, *, accept: str = "application/json") -> Answer:
    request = client.build_request(method, url, headers={"Accept": accept})
    return fetch_answer(client, request, seconds=SECONDS)


def _token(client: httpx.Client, answer: Answer, reference: Reference) -> str:
    """The anonymous token that the registry's challenge leads to; empty if it wants an account."""
    scheme, _, rest = answer.headers.get("www-authenticate", "").partition(" ")
    challenge = dict(_CHALLENGE.findall(rest))
    realm = httpx.URL(challenge.pop("realm", ""))
    if scheme.lower() != "bearer" or realm.scheme != httpx.URL(reference.url).scheme:
        return ""
    challenge.setdefault("scope", f"repository:{reference.repository}:pull")
    wanted = {name: challenge[name] for name in ("service", "scope") if name in challenge}
    given = _send(client, "GET", str(realm.copy_merge_params(wanted)))
    found = given.document(_Token) if given.succeeded else _Token()
    return found.token or found.access_token


def _tags(client: httpx.Client, reference: Reference) -> Iterator[str]:
    """The tags of a repository; of many, those of the first pages."""
    url = httpx.URL(f"{reference.url}/tags/list", params={"n": "1000"})
    for _ in range(MOST_PAGES):
        answer = _send(client, "GET", str(url))
        if not answer.succeeded:
            return
        yield from filter(_TAG.fullmatch, answer.document(_Tags).tags or [])
        following = re.match(r"<([^>]+)>", answer.headers.get("link", ""))
        if following is None:
            return
        url = answer.url.join(following[1])
        if (url.scheme, url.netloc) != (answer.url.scheme, answer.url.netloc):
            # the token is for this registry
            return


def nearest_tag(tag: str, known: Iterable[str]) -> str:
    """Of one or more tags, the next lower version with the same words, else the next higher, else the most similar."""
    names = sorted(set(known))
    alike = sorted((_numbers(name), name) for name in names if _words(name) == _words(tag))
    lower = [name for numbers, name in alike if numbers <= _numbers(tag)]
    if alike:
        return lower[-1] if lower else alike[0][1]
    return difflib.get_close_matches(tag, names, n=1, cutoff=0.0)[0]


def image_here(plan: Plan) -> str:
    """The image of the engine, or the one that it is built on, if Docker has it already; else empty."""
    settings = plan.settings
    return next((one for one in (settings.dflash_image, settings.dflash_base_image) if one and has_image(one)), "")


def another_tag(image: str, answer: TagAnswer) -> str:
    """What to do about a tag that does not exist."""
    folder, slash, name = image.partition("@")[0].rpartition("/")
    return f"`dflash-deploy set {Settings.dflash_base_image}={folder}{slash}{name.partition(':')[0]}:{answer.nearest}`"


def _words(tag: str) -> list[str]:
    return re.split(r"\d+", tag)


def _numbers(tag: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", tag)]
