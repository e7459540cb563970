"""One TLS handshake with the door on this machine: whether it has a certificate that clients accept."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from pathlib import Path

from dflash_deploy.door.site import Site
from dflash_deploy.intake import MIB, Invalid, parse_object

TIMEOUT = 5.0

_OBTAINS = "tls.obtain"
"""The part of Caddy that asks an authority for a certificate."""


def shaken(site: Site, root: Path | None) -> str:
    """Why a client on this machine refuses the certificate of the door; empty if it does.

    It connects to 127.0.0.1, whatever the name resolves to. `root` is the file of a private authority's certificate.
    """
    try:
        trust = ssl.create_default_context(cafile=None if root is None else str(root))
    except OSError as problem:
        return f"{root} cannot be read: {problem.strerror or problem}"
    try:
        with (
            socket.create_connection(("127.0.0.1", site.https_port), timeout=TIMEOUT) as connection,
            trust.wrap_socket(connection, server_hostname=site.host),
        ):
            return ""
    except ssl.SSLCertVerificationError as problem:
        return f"the certificate is not valid: {problem.verify_message}"
    except (OSError, ValueError) as problem:
        return f"no certificate yet: {problem}"


def refusal(lines: Iterable[str], said: str = "") -> str:
    """Why Caddy got no certificate the last time it asked, from the lines of its log; empty if it has got one since.

    The words are the authority's, or those of a connection to it that failed. `said` is what the lines before say.
    """
    for line in lines:
        if _OBTAINS not in line:
            continue
        try:
            entry = parse_object(line, limit=MIB)
        except Invalid:
            continue
        if entry.get("logger") != _OBTAINS:
            continue
        if entry.get("level") == "error" and entry.get("error"):
            said = str(entry["error"])
        elif "obtained successfully" in str(entry.get("msg")):
            said = ""
    return said
