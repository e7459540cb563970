"""The Hugging Face Hub or a mirror, as the source of weights."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import httpx

from dflash_deploy.errors import SettingsRefused
from dflash_deploy.redact import Secret

HUB = "https://huggingface.co"


@dataclass(frozen=True)
class Source:
    """Where weights come from: the Hugging Face Hub or a mirror, and the token for it."""

    endpoint: str
    token: Secret

    @classmethod
    def of(cls, token: Secret, endpoint: str | None = None) -> Source:
        """Return the Hub in HF_ENDPOINT, else the public one. Raises SettingsRefused if it is not a valid URL."""
        url = (endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
        if not is_address(url):
            raise SettingsRefused(
                f"HF_ENDPOINT: `{without_credentials(url)[:200]}` is not a valid URL",
                hint="set it to http://HOST:PORT or https://HOST:PORT",
            )
        return cls(url, token)

    @property
    def shown(self) -> str:
        """The endpoint for messages, without credentials."""
        return without_credentials(self.endpoint)

    def file(self, repo: str, commit: str, path: str) -> str:
        """Return the URL of one file of a commit."""
        return f"{self.endpoint}/{repo}/resolve/{quote(commit, safe='')}/{quote(path)}"


def is_address(url: str) -> bool:
    """Return whether a URL has a scheme and a host that requests can be sent to."""
    try:
        parts = urlsplit(url)
        return httpx.URL(url).scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        return False


def without_credentials(url: str) -> str:
    """Return a URL, valid or not, without the text before its last `@`."""
    return re.sub(r"^([a-z][a-z0-9+.-]*://)?.*@", r"\1", url, flags=re.IGNORECASE | re.DOTALL)
