"""The receivers of alerts as `monitor up` is given them: addresses, and files that hold keys."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from dflash_deploy.errors import BadInput
from dflash_deploy.intake.files import read_argument
from dflash_deploy.monitoring.alertmanager import Mail, Receivers, Webhook
from dflash_deploy.redact import Secret

LONGEST_KEY = 4096
"""Bytes of a file that holds a key."""

MOST_PORT = 65535

_MAILBOX = re.compile(r"[^\s@<>,;:\"]{1,64}@[^\s@<>,;:\"]{1,255}")
_SERVER = re.compile(r"(?:[\w.-]{1,255}|\[[0-9A-Fa-f:.]+\]):\d{1,5}")


def receivers(
    *,
    webhook: str | None = None,
    webhook_file: Path | None = None,
    webhook_token_file: Path | None = None,
    ntfy: str | None = None,
    ntfy_file: Path | None = None,
    ntfy_token_file: Path | None = None,
    mail: str | None = None,
    mail_from: str | None = None,
    smtp: str | None = None,
    smtp_user: str | None = None,
    smtp_password_file: Path | None = None,
) -> Receivers:
    """The receivers that were asked for, checked. A key, or an address that is a secret, is read from its file.

    Raises BadInput for an address that is not valid or a part that is missing, and FileRefused for a file of a key.
    """
    if mail is None and any((mail_from, smtp, smtp_user, smtp_password_file)):
        raise BadInput("mail has no address to send to", hint="add --mail NAME@HOST")
    return Receivers(
        _http("webhook", _address("webhook", webhook, webhook_file), webhook_token_file),
        None if mail is None else _mail(mail, mail_from, smtp, smtp_user, smtp_password_file),
        _topic(_http("ntfy", _address("ntfy", ntfy, ntfy_file), ntfy_token_file)),
    )


def _address(name: str, url: str | None, file: Path | None) -> str | None:
    if file is None:
        return url
    if url is not None:
        raise BadInput(f"--{name} and --{name}-file exclude each other", hint="leave out one of them")
    return _only_line(file, "the URL")


def _http(name: str, url: str | None, token_file: Path | None) -> Webhook | None:
    if url is None:
        if token_file is not None:
            raise BadInput(f"--{name}-token-file has no --{name} that it is for", hint=f"add --{name} URL")
        return None
    what = "the webhook" if name == "webhook" else "the ntfy topic"
    hint = "expected http://HOST:PORT/PATH or https://HOST/PATH"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    # the address may contain a secret, so it is not repeated
    if not valid or any(character.isspace() or not character.isprintable() for character in url):
        raise BadInput(f"{what} is not a valid URL", hint=hint)
    return Webhook(url, _key(token_file))


def _topic(ntfy: Webhook | None) -> Webhook | None:
    if ntfy is not None and not urlsplit(ntfy.url).path.strip("/"):
        raise BadInput("the ntfy URL has no topic", hint="expected https://ntfy.sh/TOPIC")
    if ntfy is not None and urlsplit(ntfy.url).fragment:
        raise BadInput("the ntfy URL has a `#` after its topic", hint="expected https://ntfy.sh/TOPIC")
    return ntfy


def _mail(to: str, sender: str | None, server: str | None, user: str | None, password: Path | None) -> Mail:
    for address in (to, sender or to):
        if not _MAILBOX.fullmatch(address):
            raise BadInput(f"`{address}` is not a valid mail address", hint="expected NAME@HOST")
    server = server or "127.0.0.1:25"
    if not _SERVER.fullmatch(server) or not 1 <= int(server.rpartition(":")[2]) <= MOST_PORT:
        # what precedes an @ may be a password
        named = "the mail server is not valid" if "@" in server else f"`{server}` is not a valid mail server"
        raise BadInput(named, hint="expected HOST:PORT, as smtp.example.com:587")
    if (user is None) != (password is None):
        raise BadInput("--smtp-user and --smtp-password-file belong together", hint="set both, or neither")
    return Mail(to, sender or to, server, user or "", _key(password))


def _key(path: Path | None) -> Secret | None:
    return None if path is None else Secret(_only_line(path, "the key"))


def _only_line(path: Path, what: str) -> str:
    text = read_argument(path, limit=LONGEST_KEY).strip()
    hint = f"expected a file that holds {what} and nothing else"
    if not text:
        raise BadInput(f"{path} is empty", hint=hint)
    if not text.isprintable():
        raise BadInput(f"{path} has several lines or control characters", hint=hint)
    return text
