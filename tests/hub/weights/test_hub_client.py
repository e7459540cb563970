"""The hub of the tests, asked by the real client: what it says and refuses is what our own download relies on."""

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi, close_session, constants, get_hf_file_metadata, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from tests.support.hub import Generated, Hub, Sources, read

CONFIG = b'{"model_type": "qwen3"}'
WEIGHTS = Generated(2_500_000, seed=7)
BYTES = read(WEIGHTS)
SHA256 = hashlib.sha256(BYTES).hexdigest()
NAME, SHARD = "o/target", "model.safetensors"
FILES: Sources = {"config.json": CONFIG, SHARD: WEIGHTS}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(accounts={"hf_reader": "reader", "hf_stranger": "stranger"}) as hub:
        hub.add(NAME, FILES)
        yield hub


@pytest.fixture
def api(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[HfApi]:
    """The real client, which otherwise asks the real hub for its list of agents, and this machine for a token."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    yield HfApi(endpoint=hub.endpoint)
    close_session()


def fetch(
    hub: Hub, tmp: Path, file: str, name: str = NAME, *, revision: str | None = None, token: str | None = None
) -> bytes:
    local, cache = tmp / "local", tmp / "cache"
    path = hf_hub_download(
        name, file, revision=revision, token=token, endpoint=hub.endpoint, local_dir=local, cache_dir=cache
    )
    return Path(path).read_bytes()


def test_it_reads_sizes_and_hashes(api: HfApi) -> None:
    info = api.model_info(NAME, files_metadata=True)
    found = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    shard = found[SHARD]
    assert shard.lfs is not None
    assert (shard.size, shard.lfs.size, shard.lfs.sha256) == (WEIGHTS.size, WEIGHTS.size, SHA256)
    git = hashlib.sha1(b"blob %d\0%s" % (len(CONFIG), CONFIG)).hexdigest()
    assert (found["config.json"].blob_id, found["config.json"].lfs) == (git, None)
    assert found.keys() == FILES.keys()


def test_it_learns_where_a_large_file_is(hub: Hub, api: HfApi) -> None:
    at = get_hf_file_metadata(f"{hub.endpoint}/{NAME}/resolve/main/{SHARD}")
    assert (at.etag, at.size, at.commit_hash) == (SHA256, WEIGHTS.size, api.model_info(NAME).sha)
    assert at.location.startswith(hub.cdn)


@pytest.mark.usefixtures("api")
def test_it_downloads_everything_byte_for_byte(hub: Hub, tmp_path: Path) -> None:
    at = snapshot_download(
        NAME, endpoint=hub.endpoint, local_dir=tmp_path / "local", cache_dir=tmp_path / "cache", token="hf_reader"
    )
    assert (Path(at) / SHARD).read_bytes() == BYTES
    assert (Path(at) / "config.json").read_bytes() == CONFIG
    assert hub.sent(SHARD) == WEIGHTS.size
    assert hub.leaks == []


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("hf_stranger", 403)])
def test_a_gated_repository_shows_its_files_and_keeps_them(
    hub: Hub, api: HfApi, tmp_path: Path, token: str | None, status: int
) -> None:
    hub.add("o/gated", FILES, access="gated", readers=frozenset({"reader"}))
    assert api.model_info("o/gated", files_metadata=True, token=token).gated == "manual"
    with pytest.raises(GatedRepoError) as refusal:
        fetch(hub, tmp_path, SHARD, "o/gated", token=token)
    assert refusal.value.response.status_code == status
    assert fetch(hub, tmp_path, "config.json", "o/gated", token="hf_reader") == CONFIG


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("hf_stranger", 404)])
@pytest.mark.parametrize("name", ["o/private", "o/absent"])
def test_a_private_repository_looks_like_none(hub: Hub, api: HfApi, name: str, token: str | None, status: int) -> None:
    hub.add("o/private", FILES, access="private", readers=frozenset({"reader"}))
    with pytest.raises(RepositoryNotFoundError) as refusal:
        api.model_info(name, token=token)
    assert refusal.value.response.status_code == status
    assert api.model_info("o/private", token="hf_reader").private


def test_the_real_answer_to_a_missing_repository_has_no_code() -> None:
    with Hub(bare_401=True) as hub:
        answer = httpx.get(f"{hub.endpoint}/api/models/o/absent", trust_env=False)
    assert (answer.status_code, answer.json()) == (401, {"error": "Invalid username or password."})
    assert "X-Error-Code" not in answer.headers


@pytest.mark.usefixtures("api")
def test_what_is_missing_and_a_stale_token_are_refused(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(RevisionNotFoundError):
        fetch(hub, tmp_path, SHARD, revision="absent")
    with pytest.raises(RemoteEntryNotFoundError):
        fetch(hub, tmp_path, "absent.json")
    with pytest.raises(HfHubHTTPError, match="Invalid credentials") as refusal:
        fetch(hub, tmp_path, SHARD, token="hf_stale")
    assert refusal.value.response.status_code == 401
    assert not isinstance(refusal.value, RepositoryNotFoundError)
