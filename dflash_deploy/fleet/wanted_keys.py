"""What the terminal asks of a host while a key is added, replaced or revoked: a document on standard input."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Literal

from pydantic import Field

from dflash_deploy.errors import BadInput
from dflash_deploy.intake.answers import ForeignDocument, read_document
from dflash_deploy.intake.invalid import Invalid
from dflash_deploy.redact import Secret
from dflash_deploy.serve.api_keys import KEY, LARGEST_LIMIT, NAME, ApiKey, Scope, keys_in
from dflash_deploy.serve.gateway.keyring import Accepted, entry_of
from dflash_deploy.serve.refusal import Refused

MOST_BYTES = 1 << 20
"""The longest document: 1000 keys take a fifth of it."""


@dataclass(frozen=True)
class Proof:
    """A key, and the status that the engines must answer it."""

    key: ApiKey
    status: HTTPStatus


@dataclass(frozen=True)
class WantedKeys:
    """The keys that a host accepts beside those of its `.env`, as digests; and what its engines must answer then.

    `owner` and `further` are written into `.env` of the host; `None` leaves what it has.
    """

    also: tuple[Accepted, ...] = ()
    proofs: tuple[Proof, ...] = ()
    owner: Secret | None = None
    further: tuple[ApiKey, ...] | None = None

    def document(self) -> bytes:
        """The text for the standard input of `fleet accept`. It has keys, so it is never an argument."""
        proofs = [
            {"name": one.key.name, "key": one.key.key, "scope": one.key.scope, "status": int(one.status)}
            for one in self.proofs
        ]
        further = None if self.further is None else ",".join(key.written() for key in self.further)
        owner = None if self.owner is None else self.owner.reveal()
        return json.dumps(
            {"also": [entry_of(one) for one in self.also], "proofs": proofs, "owner": owner, "further": further}
        ).encode()


Key = Annotated[str, Field(pattern=f"^{KEY.pattern}$", max_length=1000)]
KeyName = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
Limit = Annotated[int, Field(gt=0, le=LARGEST_LIMIT)]


class _Also(ForeignDocument):
    name: KeyName
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    scope: Scope
    in_flight: Limit | None = None
    tokens_per_minute: Limit | None = None


class _Proof(ForeignDocument):
    name: KeyName
    key: Key
    scope: Scope
    status: Literal[200, 401]


class _Document(ForeignDocument):
    also: Annotated[list[_Also], Field(max_length=100)]
    proofs: Annotated[list[_Proof], Field(max_length=100)]
    owner: Key | None = None
    further: str | None = None


def read_wanted(content: bytes) -> WantedKeys:
    """Return what a document asks for. Raises BadInput, without a part of the text: it has keys."""
    try:
        found = read_document(content, _Document, limit=MOST_BYTES)
        further = None if found.further is None else keys_in(found.further)
    except (Invalid, Refused):
        raise BadInput(
            "standard input has no list of keys",
            hint="`dflash-deploy fleet keys rotate` on the terminal of the fleet sends it",
        ) from None
    also = (
        Accepted(one.name, bytes.fromhex(one.sha256), one.scope, one.in_flight, one.tokens_per_minute)
        for one in found.also
    )
    proofs = (Proof(ApiKey(one.name, one.key, one.scope), HTTPStatus(one.status)) for one in found.proofs)
    owner = None if found.owner is None else Secret(found.owner)
    return WantedKeys(tuple(also), tuple(proofs), owner, further)
