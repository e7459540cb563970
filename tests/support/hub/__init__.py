"""A hub on this machine, with faults on demand, for the real `huggingface_hub` client and for our own downloader.

with Hub(accounts={"hf_reader": "reader"}) as hub:
    repo = hub.add("o/target", {"config.json": "{}", "model.safetensors": Generated(5_000_000)})
    hub.faults("model.safetensors", Cut(1_000_000), broken(503))
    ...  # HF_ENDPOINT=hub.endpoint
    assert hub.sent("model.safetensors") < 1.05 * 5_000_000
    assert not hub.leaks
"""

from tests.support.hub.content import Content, Generated, Held, OnDisk, read, sha256_of
from tests.support.hub.faults import (
    Answer,
    Cut,
    Drip,
    Fault,
    Flip,
    Gzipped,
    NoLength,
    Page,
    Redirects,
    Republished,
    Reset,
    Shifted,
    Stall,
    Unsatisfiable,
    Wait,
    WholeBody,
    broken,
    expired_link,
    rate_limited,
    too_many,
)
from tests.support.hub.ledger import Seen
from tests.support.hub.repo import Commit, Repository, Sources, StoredFile
from tests.support.hub.server import Hub

__all__ = [
    "Answer",
    "Commit",
    "Content",
    "Cut",
    "Drip",
    "Fault",
    "Flip",
    "Generated",
    "Gzipped",
    "Held",
    "Hub",
    "NoLength",
    "OnDisk",
    "Page",
    "Redirects",
    "Repository",
    "Republished",
    "Reset",
    "Seen",
    "Shifted",
    "Sources",
    "Stall",
    "StoredFile",
    "Unsatisfiable",
    "Wait",
    "WholeBody",
    "broken",
    "expired_link",
    "rate_limited",
    "read",
    "sha256_of",
    "too_many",
]
