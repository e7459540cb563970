"""The hub of the tests, asked by the real client."""

import hashlib
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi, close_session, constants, get_hf_file_metadata, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.hub.weights.published import BYTES, CONFIG, FILES, NAME, SHA256, SHARD, WEIGHTS, fetch
from tests.support.hub import Hub
from tests.support.hub.faults import (
    Cut,
    Flip,
    broken,
)


class TestTheRealClient:
    def test_reads_sizes_and_hashes(self, hub: Hub, api: HfApi) -> None:
        info = api.model_info(NAME, files_metadata=True)
        assert info.siblings is not None
        found = {sibling.rfilename: sibling for sibling in info.siblings}
        shard = found[SHARD]
        assert shard.lfs is not None
        assert (shard.size, shard.lfs.size, shard.lfs.sha256) == (WEIGHTS.size, WEIGHTS.size, SHA256)
        git = hashlib.sha1(b"blob %d\0%s" % (len(CONFIG), CONFIG)).hexdigest()
        assert (found["config.json"].blob_id, found["config.json"].lfs) == (git, None)
        assert found.keys() == FILES.keys()

    def test_lists_the_tree_page_by_page(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        with Hub(page=2) as hub:
            hub.add(NAME, FILES)
            entries = list(HfApi(endpoint=hub.endpoint, token=False).list_repo_tree(NAME, recursive=True))
            close_session()
            assert [entry.path for entry in entries] == ["assets", "assets/logo.txt", "config.json", SHARD]
            assert len(hub.requests("/api/*/tree/*")) == 2

    def test_asks_for_some_paths(self, api: HfApi) -> None:
        paths = [entry.path for entry in api.get_paths_info(NAME, [SHARD, "assets", "absent"])]
        assert paths == [SHARD, "assets"]

    def test_reads_branches(self, hub: Hub, api: HfApi) -> None:
        made = hub.publish(NAME, {"config.json": "{}"}, branch="pr/1")
        assert {ref.name: ref.target_commit for ref in api.list_repo_refs(NAME).branches}["pr/1"] == made.id
        assert api.model_info(NAME, revision="pr/1").sha == made.id
        assert api.model_info(NAME).sha != made.id

    def test_learns_where_a_large_file_is(self, hub: Hub, api: HfApi) -> None:
        at = get_hf_file_metadata(f"{hub.endpoint}/{NAME}/resolve/main/{SHARD}")
        assert (at.etag, at.size, at.commit_hash) == (SHA256, WEIGHTS.size, api.model_info(NAME).sha)
        assert at.location.startswith(hub.cdn)
        assert at.xet_file_data is None

    def test_sees_that_the_chunk_store_is_offered(self, hub: Hub, api: HfApi) -> None:
        repo = hub.add("o/chunked", FILES, xet=True)
        at = get_hf_file_metadata(f"{hub.endpoint}/o/chunked/resolve/main/{SHARD}", endpoint=hub.endpoint)
        assert at.xet_file_data is not None
        assert at.xet_file_data.file_hash == repo.head.files[SHARD].xet_hash

    def test_plans_a_download(self, hub: Hub, api: HfApi, tmp_path: Path) -> None:
        plan = snapshot_download(
            NAME, endpoint=hub.endpoint, local_dir=tmp_path / "local", cache_dir=tmp_path / "cache", dry_run=True
        )
        sizes = {file.filename: file.file_size for file in plan}
        assert sizes == {"config.json": len(CONFIG), SHARD: WEIGHTS.size, "assets/logo.txt": 4}
        assert hub.sent(SHARD) == 0

    def test_downloads_everything_byte_for_byte(self, hub: Hub, api: HfApi, tmp_path: Path) -> None:
        at = snapshot_download(
            NAME, endpoint=hub.endpoint, local_dir=tmp_path / "local", cache_dir=tmp_path / "cache", token="hf_reader"
        )
        assert (Path(at) / SHARD).read_bytes() == BYTES
        assert (Path(at) / "config.json").read_bytes() == CONFIG
        assert (Path(at) / "assets/logo.txt").read_bytes() == b"logo"
        assert hub.sent(SHARD) == WEIGHTS.size
        assert hub.leaks == []
        assert {seen.account for seen in hub.requests() if seen.site == "hub"} == {"reader"}

    def test_takes_a_file_from_disk(self, hub: Hub, api: HfApi, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(BYTES)
        hub.add("o/disk", {SHARD: tmp_path / "source"})
        assert fetch(hub, tmp_path, SHARD, "o/disk") == BYTES

    @pytest.mark.parametrize(("chunk", "kept"), [(500_000, 1_000_000), (10 * 1024 * 1024, 0)])
    def test_goes_on_from_its_last_whole_chunk(
        self, hub: Hub, api: HfApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, kept: int
    ) -> None:
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", chunk)
        hub.faults(SHARD, Cut(1_200_000))
        assert fetch(hub, tmp_path, SHARD) == BYTES
        asked = [seen.range for seen in hub.requests(SHARD, stage="body")]
        assert asked == [None, f"bytes={kept}-" if kept else None]
        assert hub.sent(SHARD) == 1_200_000 + WEIGHTS.size - kept

    def test_does_not_notice_a_wrong_byte(self, hub: Hub, api: HfApi, tmp_path: Path) -> None:
        hub.faults(SHARD, Flip(9))
        assert fetch(hub, tmp_path, SHARD)[9] == BYTES[9] ^ 0xFF

    def test_is_told_about_a_new_commit(self, hub: Hub, api: HfApi, tmp_path: Path) -> None:
        before = api.model_info(NAME).sha
        assert before is not None
        after = hub.publish(NAME, {"config.json": "{}"})
        assert api.model_info(NAME).sha == after.id != before
        assert fetch(hub, tmp_path, "config.json") == b"{}"
        assert fetch(hub, tmp_path, "config.json", revision=before) == CONFIG


class TestRefusals:
    @pytest.mark.parametrize(("token", "status"), [(None, 401), ("hf_stranger", 403)])
    def test_a_gated_repository_shows_its_files_and_keeps_them(
        self, hub: Hub, api: HfApi, tmp_path: Path, token: str | None, status: int
    ) -> None:
        hub.add("o/gated", FILES, access="gated", readers=frozenset({"reader"}))
        assert api.model_info("o/gated", files_metadata=True, token=token).gated == "manual"
        with pytest.raises(GatedRepoError) as refusal:
            fetch(hub, tmp_path, SHARD, "o/gated", token=token)
        assert refusal.value.response.status_code == status
        assert fetch(hub, tmp_path, "config.json", "o/gated", token="hf_reader") == CONFIG

    @pytest.mark.parametrize(("token", "status"), [(None, 401), ("hf_stranger", 404)])
    @pytest.mark.parametrize("name", ["o/private", "o/absent"])
    def test_a_private_repository_looks_like_none(
        self, hub: Hub, api: HfApi, name: str, token: str | None, status: int
    ) -> None:
        hub.add("o/private", FILES, access="private", readers=frozenset({"reader"}))
        with pytest.raises(RepositoryNotFoundError) as refusal:
            api.model_info(name, token=token)
        assert refusal.value.response.status_code == status
        assert api.model_info("o/private", token="hf_reader").private

    def test_the_real_answer_to_a_missing_repository_has_no_code(self) -> None:
        with Hub(bare_401=True) as hub:
            answer = httpx.get(f"{hub.endpoint}/api/models/o/absent", trust_env=False)
        assert (answer.status_code, answer.json()) == (401, {"error": "Invalid username or password."})
        assert "X-Error-Code" not in answer.headers

    def test_a_missing_revision(self, hub: Hub, api: HfApi, tmp_path: Path) -> None:
        with pytest.raises(RevisionNotFoundError):
            api.model_info(NAME, revision="absent")
        with pytest.raises(RevisionNotFoundError):
            fetch(hub, tmp_path, SHARD, revision="absent")

    def test_a_missing_file(self, hub: Hub, api: HfApi, tmp_path: Path) -> None:
        with pytest.raises(RemoteEntryNotFoundError):
            fetch(hub, tmp_path, "absent.json")

    def test_a_stale_token_is_refused_for_public_files(self, hub: Hub, api: HfApi, tmp_path: Path) -> None:
        with pytest.raises(HfHubHTTPError, match="Invalid credentials") as refusal:
            fetch(hub, tmp_path, SHARD, token="hf_stale")
        assert refusal.value.response.status_code == 401
        assert not isinstance(refusal.value, RepositoryNotFoundError)
        with pytest.raises(HfHubHTTPError, match="Invalid user token"):
            api.whoami(token="hf_stale")
        assert api.whoami(token="hf_reader")["name"] == "reader"

    def test_an_old_name_leads_to_the_new_one(self, hub: Hub, api: HfApi, tmp_path: Path) -> None:
        hub.rename(NAME, "p/renamed")
        assert api.model_info(NAME).id == "p/renamed"
        assert fetch(hub, tmp_path, SHARD) == BYTES
        assert fetch(hub, tmp_path, "config.json") == CONFIG

    def test_a_hub_that_is_out_of_order(self, hub: Hub, api: HfApi, tmp_path: Path) -> None:
        hub.faults(SHARD, broken(500), stage="body", forever=True)
        with pytest.raises(HfHubHTTPError, match="500"):
            fetch(hub, tmp_path, SHARD)
        hub.faults("/api/models/*", broken(503), stage="api", forever=True)
        with pytest.raises(LocalEntryNotFoundError):
            snapshot_download(NAME, endpoint=hub.endpoint, cache_dir=tmp_path / "cache")
