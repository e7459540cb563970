"""What weights on the hub say of themselves before they are fetched, from a hub that misbehaves on demand."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.errors import DownloadFailed
from dflash_deploy.redact import Secret
from dflash_deploy.weights import hub as asking
from dflash_deploy.weights.ahead import header_of, read_hub_metadata
from dflash_deploy.weights.download import DownloadOptions
from dflash_deploy.weights.fetch import fetch
from dflash_deploy.weights.hub import Source, resolve
from dflash_deploy.weights.lock import Lock, LockedModel, needed
from dflash_deploy.weights.pull import RequestedModel
from tests.support.gguf import model as gguf
from tests.support.hub import Generated, Held, Hub, read
from tests.support.hub.faults import Cut, Fault, Republished, Shifted, WholeBody, broken

NAME = "target-Q4_K_M.gguf"
WORDS = [f"token {number}" for number in range(150_000)]
HEADER = gguf("qwen35", WORDS, embedding_length=5120, block_count=64, context_length=262144)
CONTENT = HEADER + read(Generated(40_000_000, seed=3))  # A header of 3 MB: it takes more than one look


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(asking, "FIRST_PAUSE", 0.02)
    with Hub() as running:
        running.add("o/gguf", {NAME: Held(CONTENT), "page.gguf": "<!DOCTYPE html>", "short.gguf": HEADER[:2_000_000]})
        yield running


def source(hub: Hub) -> Source:
    return Source(hub.endpoint, Secret(""))


def model(hub: Hub, name: str = NAME) -> LockedModel:
    there = resolve(source(hub), "o/gguf", None)
    return LockedModel(there.repo, there.commit, needed(there.files, "target", (name,)))


def test_the_header_comes_without_the_tensors(hub: Hub, tmp_path: Path) -> None:
    found = model(hub)
    header = header_of(source(hub), found, found.files[0], tmp_path / "m", DownloadOptions())
    assert header["qwen35.embedding_length"] == 5120
    assert header["tokenizer.ggml.tokens.length"] == len(WORDS)
    assert hub.sent(NAME) < 8_000_000
    assert not (tmp_path / "m" / NAME).exists()


def test_its_bytes_are_not_fetched_twice(hub: Hub, tmp_path: Path) -> None:
    found = model(hub)
    header_of(source(hub), found, found.files[0], tmp_path / "m", DownloadOptions())
    fetch(source(hub), found, tmp_path / "m", DownloadOptions())
    assert (tmp_path / "m" / NAME).read_bytes() == CONTENT
    assert hub.sent(NAME) == len(CONTENT)
    hub.forget()
    assert header_of(source(hub), found, found.files[0], tmp_path / "m", DownloadOptions())["qwen35.block_count"] == 64
    assert hub.requests() == []


@pytest.mark.parametrize("fault", [Cut(500_000), WholeBody(), Shifted(7), broken(503), Republished()])
def test_a_fault_on_the_way_changes_nothing(hub: Hub, tmp_path: Path, fault: Fault) -> None:
    hub.faults(NAME, fault, stage="body")
    found = model(hub)
    assert header_of(source(hub), found, found.files[0], tmp_path / "m", DownloadOptions())["qwen35.block_count"] == 64
    # a server that sends the whole file for a range does not get to send it all
    assert hub.sent(NAME) < len(CONTENT)
    fetch(source(hub), found, tmp_path / "m", DownloadOptions())
    assert hashlib.sha256((tmp_path / "m" / NAME).read_bytes()).digest() == hashlib.sha256(CONTENT).digest()


@pytest.mark.parametrize("name", ["page.gguf", "short.gguf"])
def test_what_is_no_gguf_is_refused_before_it_is_fetched(hub: Hub, tmp_path: Path, name: str) -> None:
    found = model(hub, name)
    with pytest.raises(DownloadFailed, match=name):
        header_of(source(hub), found, found.files[0], tmp_path / "m", DownloadOptions())


def test_looking_ahead_reads_the_model_and_not_its_projector(hub: Hub, tmp_path: Path) -> None:
    hub.publish("o/gguf", {NAME: Held(CONTENT), "mmproj.gguf": Held(gguf("clip", []))})
    there = resolve(source(hub), "o/gguf", None)
    names = (NAME, "mmproj.gguf")
    order = RequestedModel("target", "o/gguf", None, tmp_path / "m", names)
    lock = Lock({"target": LockedModel(there.repo, there.commit, needed(there.files, "target", names))})
    ahead = read_hub_metadata(source(hub), (order,), lock)
    assert ahead.headers["target"]["general.architecture"] == "qwen35"
    assert ahead.names["target"] == set(names)
    assert hub.sent("mmproj.gguf") == 0
