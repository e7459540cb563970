"""The hub of the tests, asked by the real client, and each of its faults, asked by hand."""

import gzip
import hashlib
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi, close_session, constants, get_hf_file_metadata, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils._http import parse_ratelimit_headers
from huggingface_hub.utils.tqdm import disable_progress_bars

from tests.support.hub import Generated, Hub, Sources, read
from tests.support.hub.faults import (
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

CONFIG = b'{"model_type": "qwen3"}'
WEIGHTS = Generated(2_500_000, seed=7)
BYTES = read(WEIGHTS)
SHA256 = hashlib.sha256(BYTES).hexdigest()
NAME = "o/target"
SHARD = "model.safetensors"
FILES: Sources = {"config.json": CONFIG, SHARD: WEIGHTS, "assets/logo.txt": "logo"}


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


@pytest.fixture
def http(hub: Hub) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=hub.endpoint, follow_redirects=True, trust_env=False, timeout=60) as client:
        yield client


def fetch(
    hub: Hub, tmp: Path, file: str, name: str = NAME, *, revision: str | None = None, token: str | None = None
) -> bytes:
    local, cache = tmp / "local", tmp / "cache"
    path = hf_hub_download(
        name, file, revision=revision, token=token, endpoint=hub.endpoint, local_dir=local, cache_dir=cache
    )
    return Path(path).read_bytes()


def get(http: httpx.Client, file: str = SHARD, **headers: str) -> httpx.Response:
    return http.get(f"/{NAME}/resolve/main/{file}", headers=headers)


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


class TestRanges:
    @pytest.mark.parametrize(
        ("asked", "start", "stop"),
        [("0-0", 0, 1), ("5-9", 5, 10), ("2499999-", 2_499_999, 2_500_000), ("-7", 2_499_993, 2_500_000)],
    )
    def test_a_part(self, http: httpx.Client, asked: str, start: int, stop: int) -> None:
        part = get(http, Range=f"bytes={asked}")
        assert (part.status_code, part.content) == (206, BYTES[start:stop])
        assert part.headers["Content-Range"] == f"bytes {start}-{stop - 1}/2500000"

    def test_a_part_of_a_small_file(self, http: httpx.Client) -> None:
        assert get(http, "config.json", Range="bytes=2-4").content == CONFIG[2:5]

    def test_a_part_that_is_not_there(self, http: httpx.Client) -> None:
        none = get(http, Range="bytes=2500000-")
        assert (none.status_code, none.headers["Content-Range"]) == (416, "bytes */2500000")

    def test_a_part_only_of_the_same_version(self, hub: Hub, http: httpx.Client) -> None:
        name = get(http).headers["ETag"]
        assert name != f'"{SHA256}"'
        same = get(http, **{"Range": "bytes=5-9", "If-Range": name})
        other = get(http, **{"Range": "bytes=5-9", "If-Range": '"other"'})
        assert (same.status_code, other.status_code) == (206, 200)

    def test_many_parts_at_once(self, hub: Hub, http: httpx.Client) -> None:
        def part(at: int) -> bytes:
            return get(http, Range=f"bytes={at}-{at + 99_999}").content

        with ThreadPoolExecutor(8) as pool:
            assert b"".join(pool.map(part, range(0, WEIGHTS.size, 100_000))) == BYTES
        assert hub.sent(SHARD) == WEIGHTS.size

    def test_blocks_differ(self) -> None:
        big = Generated(5 << 20)
        blocks = {read(big, at, at + 1000) for at in range(0, big.size, 1 << 20)}
        assert len(blocks) == 5
        assert read(big, (1 << 20) - 10, (1 << 20) + 10) == read(big)[(1 << 20) - 10 : (1 << 20) + 10]


class TestFaults:
    def test_come_one_request_at_a_time(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, broken(502), None, broken(504))
        assert [get(http).status_code for _ in range(4)] == [502, 200, 504, 200]
        hub.faults(SHARD, broken(503), forever=True)
        assert [get(http).status_code for _ in range(3)] == [503] * 3
        hub.heal()
        assert get(http).status_code == 200

    def test_belong_to_a_stage_and_a_method(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(f"{NAME}/*", broken(503), stage="resolve", method="HEAD")
        assert get(http).status_code == 200
        assert http.head(f"/{NAME}/resolve/main/{SHARD}").status_code == 503
        hub.faults("/api/models/*", broken(500), stage="api")
        assert http.get(f"/api/models/{NAME}").status_code == 500

    @pytest.mark.parametrize("fault", [Cut(1_500_000), Reset(1_500_000)])
    def test_a_connection_ends(self, hub: Hub, http: httpx.Client, fault: Fault) -> None:
        hub.faults(SHARD, fault)
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)) as end:
            get(http)
        assert isinstance(end.value, httpx.ReadError) == isinstance(fault, Reset)
        assert hub.sent(SHARD) == 1_500_000
        assert get(http).content == BYTES

    def test_a_range_is_ignored(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, WholeBody())
        whole = get(http, Range="bytes=5-9")
        assert (whole.status_code, whole.content) == (200, BYTES)

    def test_a_range_is_refused(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Unsatisfiable())
        assert get(http, Range="bytes=5-9").status_code == 416

    def test_a_range_is_another_one(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Shifted(2))
        part = get(http, Range="bytes=5-9")
        assert (part.content, part.headers["Content-Range"]) == (BYTES[7:10], "bytes 7-9/2500000")

    def test_too_many_requests(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, too_many(7), too_many(60, as_date=True), rate_limited(55, quota=3000), stage="resolve")
        plain, dated, said = get(http), get(http), get(http)
        assert [answer.status_code for answer in (plain, dated, said)] == [429] * 3
        assert plain.headers["Retry-After"] == "7"
        assert 50 < parsedate_to_datetime(dated.headers["Retry-After"]).timestamp() - time.time() <= 60
        limit = parse_ratelimit_headers(said.headers)
        assert limit is not None
        assert (limit.resource_type, limit.remaining, limit.reset_in_seconds, limit.limit) == ("resolvers", 0, 55, 3000)

    def test_silence_in_the_body(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Stall(1000, 0.3))
        began = time.monotonic()
        with http.stream("GET", f"/{NAME}/resolve/main/{SHARD}") as answer:
            pieces = list(answer.iter_raw())
        assert time.monotonic() - began > 0.3
        assert (len(pieces[0]), b"".join(pieces)) == (1000, BYTES)

    def test_silence_is_as_long_as_it_says(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Stall(1000, 60))
        with pytest.raises(httpx.ReadTimeout):
            http.get(f"/{NAME}/resolve/main/{SHARD}", timeout=0.5)
        assert hub.sent(SHARD) == 1000

    def test_silence_before_the_head(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Wait(60), stage="resolve")
        with pytest.raises(httpx.ReadTimeout):
            http.get(f"/{NAME}/resolve/main/{SHARD}", timeout=0.5)

    def test_a_drip(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Drip(1_000_000))
        began = time.monotonic()
        assert get(http, Range="bytes=0-299999").content == BYTES[:300_000]
        assert time.monotonic() - began > 0.25

    def test_a_wrong_byte(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Flip(1_000_000), Flip(1_000_000))
        whole, part = get(http), get(http, Range="bytes=1000000-1000001")
        assert [at for at in range(WEIGHTS.size) if whole.content[at] != BYTES[at]] == [1_000_000]
        assert (part.content[0] ^ 0xFF, part.content[1]) == (BYTES[1_000_000], BYTES[1_000_001])

    def test_another_version_under_the_same_address(self, hub: Hub, http: httpx.Client) -> None:
        before = get(http).headers["ETag"]
        hub.faults(SHARD, Republished())
        after = get(http, **{"Range": "bytes=5-", "If-Range": before})
        assert after.headers["ETag"] != before
        assert (after.status_code, len(after.content)) == (200, WEIGHTS.size)
        assert after.content != BYTES

    @pytest.mark.parametrize("file", [SHARD, "config.json"])
    def test_a_chain_of_redirects(self, hub: Hub, http: httpx.Client, file: str) -> None:
        hub.faults(file, Redirects(3), stage="resolve")
        answer = get(http, file)
        assert answer.content == (BYTES if file == SHARD else CONFIG)
        assert len(answer.history) == 4
        hub.faults(file, Redirects(25), stage="resolve")
        with pytest.raises(httpx.TooManyRedirects):
            get(http, file)

    def test_no_length(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, NoLength())
        answer = get(http)
        assert "Content-Length" not in answer.headers
        assert answer.content == BYTES

    def test_no_length_and_no_end(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, NoLength())
        hub.faults(SHARD, Cut(1000))
        with pytest.raises(httpx.RemoteProtocolError):
            get(http)

    def test_a_page_for_people(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults("config.json", Page())
        answer = get(http, "config.json", Range="bytes=5-9")
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "sign in" in answer.text

    def test_a_proxy_that_compresses(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults("config.json", Gzipped())
        with http.stream("GET", f"/{NAME}/resolve/main/config.json", headers={"Range": "bytes=5-"}) as answer:
            packed = b"".join(answer.iter_raw())
        assert answer.status_code == 200
        assert answer.headers["Content-Encoding"] == "gzip"
        assert int(answer.headers["Content-Length"]) == len(packed) != len(CONFIG)
        assert gzip.decompress(packed) == CONFIG

    def test_an_address_that_ran_out(self, hub: Hub, http: httpx.Client) -> None:
        address = http.head(f"/{NAME}/resolve/main/{SHARD}", follow_redirects=False).headers["Location"]
        assert httpx.get(address, trust_env=False).status_code == 200
        hub.expire_links()
        assert httpx.get(address, trust_env=False).status_code == 403
        assert get(http).status_code == 200
        hub.faults(SHARD, expired_link())
        assert get(http).status_code == 403


class TestTheLedger:
    def test_names_ranges_and_counts_bytes(self, hub: Hub, http: httpx.Client) -> None:
        get(http, Range="bytes=0-99")
        get(http, "config.json")
        seen = hub.requests(SHARD, stage="body")
        assert [(one.method, one.range, one.status, one.sent) for one in seen] == [("GET", "bytes=0-99", 206, 100)]
        assert (hub.sent(SHARD), hub.sent("config.json"), hub.sent()) == (100, len(CONFIG), 100 + len(CONFIG))
        hub.forget()
        assert hub.requests() == []

    def test_sees_a_token_that_leaks_and_keeps_none(self, hub: Hub, http: httpx.Client) -> None:
        get(http, Authorization="Bearer hf_reader")
        assert hub.leaks == []
        address = http.head(f"/{NAME}/resolve/main/{SHARD}", follow_redirects=False).headers["Location"]
        httpx.get(address, headers={"Authorization": "Bearer hf_reader"}, trust_env=False)
        assert [(one.site, one.file, one.account) for one in hub.leaks] == [("cdn", f"{NAME}/{SHARD}", "reader")]
        assert "hf_reader" not in repr(hub.requests())


def test_a_slow_hub() -> None:
    with Hub(latency=0.1, rate=1_000_000) as hub:
        hub.add(NAME, FILES)
        began = time.monotonic()
        address = f"{hub.endpoint}/{NAME}/resolve/main/{SHARD}"
        answer = httpx.get(address, headers={"Range": "bytes=0-199999"}, follow_redirects=True, trust_env=False)
        assert len(answer.content) == 200_000
        assert time.monotonic() - began > 0.35
