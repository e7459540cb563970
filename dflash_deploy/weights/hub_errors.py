"""Why the Hugging Face Hub, or what is on the way to it, refuses a request, and what to do. All commands use it."""

from __future__ import annotations

import os
from urllib.request import proxy_bypass

import httpx

from dflash_deploy.errors import DeployError, HubUnreachable, RepositoryGated, RepositoryMissing, TokenRefused
from dflash_deploy.serve.settings import Settings
from dflash_deploy.weights.source import Source, without_credentials

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
UNAUTHORISED, FORBIDDEN, MISSING, PROXY_LOGIN = 401, 403, 404, 407
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_MIRROR = "set HF_ENDPOINT to a mirror"
TOKENS = "https://huggingface.co/settings/tokens"


def is_page(headers: httpx.Headers) -> bool:
    """Return whether an answer is a web page: the Hub answers with JSON, text or bytes."""
    return str(headers.get("content-type", "")).lower().startswith("text/html")


def is_final(problem: httpx.HTTPError) -> bool:
    """Return whether the same request fails again: its certificate is not trusted, or the proxy refuses it (4xx)."""
    said = str(problem)
    return _UNTRUSTED in said or (isinstance(problem, httpx.ProxyError) and said.startswith("4"))


def refusal(status: int, headers: httpx.Headers, url: httpx.URL, source: Source, repo: str) -> DeployError:
    """Return the error for an answer that is not the requested one. `url` is where it came from, after redirects."""
    code = headers.get("x-error-code", "")
    if status == PROXY_LOGIN:
        return _proxy_login(url, source)
    if is_page(headers) and not code and status not in TRANSIENT:
        return HubUnreachable(
            f"{_server(url, source)} returned a web page ({status}) in place of {repo}",
            hint="a filter, proxy or sign-in page of this network answers, or HF_ENDPOINT is not a Hugging Face Hub: "
            f"open the URL in a browser, have {url.host} allowed, or {_MIRROR} that this network allows",
        )
    if status in {UNAUTHORISED, FORBIDDEN} and source.token and url.host != httpx.URL(source.endpoint).host:
        return HubUnreachable(
            f"{_server(url, source)} returned {status} for {repo}, without the token",
            hint=f"the token is sent to {source.shown} only: set HF_ENDPOINT to the host that needs it",
        )
    return _refused_access(status, code, source, repo) or HubUnreachable(
        f"{_server(url, source)} returned {status} for {repo}", hint="try again later: downloaded bytes are kept"
    )


def _refused_access(status: int, code: str, source: Source, repo: str) -> DeployError | None:
    page, shown = f"{source.shown}/{repo}", bool(source.token.reveal())
    if code == "GatedRepo" or (status == FORBIDDEN and shown):
        missing = f"write your token to {Settings.hf_token} in .env"
        ask = "the token's account has not accepted them yet" if shown else missing
        return RepositoryGated(
            f"{repo} is gated: only accounts that accepted its terms can download it",
            hint=f"accept them on {page}; {ask}",
        )
    if code == "RevisionNotFound":
        return RepositoryMissing(f"{repo} does not have this revision", hint=f"choose one of {page}/commits")
    if status == UNAUTHORISED and shown and code != "RepoNotFound":
        return TokenRefused(
            f"{source.shown} rejects the token in {Settings.hf_token} (401), even for a public repository",
            hint=f"it is expired or revoked: make a new one at {TOKENS} and write it to {Settings.hf_token} in .env, "
            "or clear the line for public models",
        )
    if status in {UNAUTHORISED, MISSING} or code == "RepoNotFound":
        private = "" if shown else f"; if it is private, write a token of {TOKENS} to {Settings.hf_token} in .env"
        return RepositoryMissing(f"{source.shown} has no {repo}", hint=f"check whether it was renamed{private}")
    return None


def unreachable(problem: httpx.HTTPError, source: Source) -> HubUnreachable:
    """Return the error for a request without an answer. It names the host that failed: a mirror may redirect."""
    try:
        url = problem.request.url
    except RuntimeError:
        # that of a timeout for the whole answer
        url = httpx.URL(source.endpoint)
    said = str(problem)[:300] or type(problem).__name__
    variable, proxy = _proxy(url, source)
    if isinstance(problem, httpx.ProxyError):
        if said.startswith(str(PROXY_LOGIN)):
            return _proxy_login(url, source)
        return HubUnreachable(
            f"{proxy} did not connect to {url.host}: {said}", hint=f"have {url.host} allowed there, or {_MIRROR}"
        )
    if variable and isinstance(problem, httpx.ConnectError | httpx.ConnectTimeout) and "SSL" not in said:
        return HubUnreachable(
            f"{proxy} cannot be reached: {said}", hint=f"correct {variable}, or unset it if no proxy is needed"
        )
    hint = f"check the network or its proxy (HTTPS_PROXY), or {_MIRROR}"
    if url.host != httpx.URL(source.endpoint).host:
        hint = f"this network must reach {url.host} too: check its proxy (HTTPS_PROXY), or {_MIRROR} with its own files"
    if _UNTRUSTED in said:
        hint = (
            "if a proxy of this network has its own certificate, set SSL_CERT_FILE to a file that contains it, such as "
            "/etc/ssl/certs/ca-certificates.crt; check the clock too: `timedatectl`"
        )
    return HubUnreachable(f"{_server(url, source)} cannot be reached: {said}", hint=hint)


def _proxy_login(url: httpx.URL, source: Source) -> HubUnreachable:
    variable, proxy = _proxy(url, source)
    return HubUnreachable(
        f"{proxy} asks for a user name and password (407)",
        # a URL with both would be redacted
        hint=f"put both before the host in {variable or 'HTTPS_PROXY'}, with `:` between them and `@` after them",
    )


def _server(url: httpx.URL, source: Source) -> str:
    """The server of a request, and the Hub or mirror that redirected there; without credentials."""
    endpoint = httpx.URL(source.endpoint)
    if (url.host, url.port) == (endpoint.host, endpoint.port):
        return source.shown
    return f"{url.scheme}://{url.netloc.decode()}, where {source.shown} redirects,"


def _proxy(url: httpx.URL, source: Source) -> tuple[str, str]:
    """The variable with the proxy of a URL, as httpx reads the environment, and the proxy; empty and a word if none."""
    names = (f"{url.scheme}_proxy", f"{url.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    name = next((name for name in names if os.environ.get(name)), "")
    if not name or source.direct or proxy_bypass(url.host):
        return "", "a proxy of this network"
    return name, f"the proxy {without_credentials(os.environ[name])} ({name})"
