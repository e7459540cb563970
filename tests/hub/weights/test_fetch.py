"""Fetching from a hub that misbehaves on demand: a right file at the end, or an error, never something in between."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_deploy.errors import DownloadFailed, Interrupted, NoRoom
from dflash_deploy.redact import Secret
from dflash_deploy.weights import download as pace
from dflash_deploy.weights import download as transfer
from dflash_deploy.weights import fetch as staging
from dflash_deploy.weights import hub as asking
from dflash_deploy.weights.download import DownloadOptions
from dflash_deploy.weights.fetch import fetch, missing_files
from dflash_deploy.weights.hub import Source, resolve
from dflash_deploy.weights.lock import LockedModel, needed
from tests.support.commands import wait_until
from tests.support.hub import Generated, Hub, sha256_of
from tests.support.hub.faults import (
    Cut,
    Drip,
    Fault,
    Flip,
    Gzipped,
    Halt,
    NoLength,
    Page,
    Redirects,
    Republished,
    Reset,
    Shifted,
    Stall,
    Unsatisfiable,
    WholeBody,
    broken,
    expired_link,
    rate_limited,
    too_many,
)

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "downloads.md"

SIZE = 5_000_000
WEIGHTS = Generated(SIZE, seed=7)
SHARD = "model.safetensors"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(staging, "PATIENCE", 1.0)
    monkeypatch.setattr(asking, "FIRST_PAUSE", 0.02)
    with Hub(accounts={"hf_reader": "reader"}) as running:
        running.add("o/target", {"config.json": "{}", SHARD: WEIGHTS, "README.md": "# card", "sub/x.safetensors": b"x"})
        yield running


def source(hub: Hub, token: str = "") -> Source:
    return Source(hub.endpoint, Secret(token))


def model(hub: Hub, token: str = "") -> LockedModel:
    there = resolve(source(hub, token), "o/target", None)
    return LockedModel(there.repo, there.commit, needed(there.files, "target"))


def whole(directory: Path) -> bool:
    return (directory / SHARD).is_file() and (
        sha256_of(WEIGHTS) == hashlib.sha256((directory / SHARD).read_bytes()).hexdigest()
    )


def test_what_is_needed_arrives_byte_for_byte(hub: Hub, tmp_path: Path) -> None:
    wanted = model(hub)
    assert {file.path for file in wanted.files} == {"config.json", SHARD}
    done = fetch(source(hub), wanted, tmp_path / "m", DownloadOptions())
    assert (done.fetched, done.there) == (2, 0)
    assert whole(tmp_path / "m")
    assert not (tmp_path / "m" / SHARD).is_symlink()
    assert missing_files(tmp_path / "m", wanted) == ()


def test_a_second_time_nothing_is_fetched(hub: Hub, tmp_path: Path) -> None:
    wanted = model(hub)
    fetch(source(hub), wanted, tmp_path / "m", DownloadOptions())
    sent = hub.sent(SHARD)
    assert fetch(source(hub), wanted, tmp_path / "m", DownloadOptions()).there == 2
    assert hub.sent(SHARD) == sent


def test_a_link_in_the_place_of_a_part_file_is_not_written_through(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "m" / ".pull").mkdir(parents=True)
    (tmp_path / "m" / ".pull" / f"{SHARD}.part").symlink_to(tmp_path / "mine")
    fetch(source(hub), model(hub), tmp_path / "m", DownloadOptions())
    assert whole(tmp_path / "m")
    assert (tmp_path / "mine").read_text() == "mine"


FAULTS: dict[str, tuple[list[Fault], float]] = {
    "cut at byte 1,000,000": ([Cut(1_000_000)], 1.05),
    "cut three times": ([Cut(1_000_000), Cut(900_000), Cut(10)], 1.05),
    # a reset throws away what the system had received and nobody had read
    "connection reset": ([Reset(700_000)], 1.3),
    "whole body for a range": ([Cut(2_000_000), WholeBody()], 1.5),
    "416 for a range that is there": ([Unsatisfiable()], 1.05),
    "429 with seconds": ([too_many(1)], 1.05),
    "429 with a date": ([too_many(1, as_date=True)], 1.05),
    "rate limit in the Hub's headers": ([rate_limited(1)], 1.05),
    "a burst of 500, 502, 503, 504": ([broken(500), broken(502), broken(503), broken(504)], 1.05),
    # longer than the download: what is sent to a client that has left would count
    "stall": ([Stall(500_000, 600.0)], 1.05),
    "wrong bytes": ([Flip(1234)], 2.05),
    "another ETag between ranges": ([Cut(1_000_000), Republished("other")], 2.2),
    # what was on its way when the answer was refused counts as sent
    "a range other than asked for": ([Cut(1_000_000), Shifted(100)], 2.0),
    "redirects": ([Redirects(3)], 1.05),
    "a signed address that has expired": ([expired_link()], 1.05),
    "slow drip": ([Drip(20_000_000)], 1.05),
    "no length": ([NoLength()], 1.05),
    "a proxy that compresses": ([Gzipped()], 2.0),
    "an error page with 200": ([Page()], 1.05),
}


def test_the_documented_faults_are_those_that_are_tested() -> None:
    documented = re.findall(r"^\| ([^|]+) \| ([\d.]+) \|$", DOCS.read_text(), re.MULTILINE)
    assert documented == [(name, f"{most}") for name, (_, most) in FAULTS.items()]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_survived(hub: Hub, tmp_path: Path, fault: str) -> None:
    faults, most = FAULTS[fault]
    hub.faults(SHARD, *faults)
    fetch(source(hub), model(hub), tmp_path / "m", DownloadOptions())
    assert whole(tmp_path / "m")
    assert hub.sent(SHARD) <= most * SIZE


def test_a_drip_is_a_stalled_download_and_keeps_its_bytes(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "WINDOW", 0.3)
    monkeypatch.setattr(transfer, "FRUITLESS", 2)
    hub.faults(SHARD, Drip(100), forever=True)
    wanted = model(hub)
    with pytest.raises(DownloadFailed, match=r"stalled at \d+ of 5000000 bytes: \d+ bytes/s over \d s") as slow:
        fetch(source(hub), wanted, tmp_path / "m", DownloadOptions())
    assert "pull` again to resume" in slow.value.hint
    hub.heal()
    fetch(source(hub), wanted, tmp_path / "m", DownloadOptions())
    assert whole(tmp_path / "m")


def test_an_interrupted_slow_download_keeps_its_bytes(hub: Hub, tmp_path: Path) -> None:
    for fault in (Drip(400_000), Halt(1_000_000)):
        hub.faults(SHARD, fault, forever=True)
    wanted, options = model(hub), DownloadOptions()

    def stop() -> None:
        assert wait_until(lambda: hub.sent(SHARD) > 400_000, 60)
        options.stopped.set()

    thread = Thread(target=stop)
    thread.start()
    with pytest.raises(Interrupted):
        fetch(source(hub), wanted, tmp_path / "m", options)
    thread.join()
    hub.heal()
    hub.forget()
    fetch(source(hub), wanted, tmp_path / "m", DownloadOptions())
    assert whole(tmp_path / "m")
    assert hub.sent(SHARD) < SIZE - 200_000


def test_several_files_are_fetched_at_once(hub: Hub, tmp_path: Path) -> None:
    shards = {f"model-0000{number}-of-00003.safetensors": WEIGHTS for number in (1, 2, 3)}
    hub.add("o/shards", shards)
    hub.faults("o/shards/*", Halt(1000), Halt(1000), Halt(1000))
    there = resolve(source(hub), "o/shards", None)

    def heal() -> None:
        # each has begun, and none can end
        assert wait_until(lambda: all(hub.sent(f"o/shards/{name}") == 1000 for name in shards), 60)
        hub.heal()

    thread = Thread(target=heal)
    thread.start()
    fetch(source(hub), LockedModel(there.repo, there.commit, there.files), tmp_path / "m", DownloadOptions())
    thread.join()
    # one connection a file
    assert len(hub.requests("o/shards/*", stage="body")) == 3


def test_bytes_that_are_wrong_every_time_are_never_taken(hub: Hub, tmp_path: Path) -> None:
    hub.faults(SHARD, Flip(1234), forever=True)
    with pytest.raises(DownloadFailed, match="checksum differs"):
        fetch(source(hub), model(hub), tmp_path / "m", DownloadOptions())
    assert not (tmp_path / "m" / SHARD).exists()


def open_files(directory: Path) -> list[str]:
    """The files below a directory that this process holds open."""
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if link.startswith(f"{directory}/")]


@pytest.mark.parametrize("faults", [(Flip(1234),), (broken(500),), (broken(404),)], ids=["bytes", "hub", "file"])
def test_a_download_that_fails_leaves_no_file_open(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: tuple[Fault, ...]
) -> None:
    monkeypatch.setattr(transfer, "FRUITLESS", 2)
    hub.faults(SHARD, *faults, forever=True)
    wanted = model(hub)
    with pytest.raises(DownloadFailed):
        fetch(source(hub), wanted, tmp_path / "m", DownloadOptions())
    assert open_files(tmp_path) == []


def test_the_token_stays_at_the_hub(hub: Hub, tmp_path: Path) -> None:
    fetch(source(hub, "hf_reader"), model(hub, "hf_reader"), tmp_path / "m", DownloadOptions())
    assert any(seen.authorised for seen in hub.requests(SHARD))
    assert hub.leaks == []


def test_too_small_a_disk_is_refused_before_the_first_byte(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "SPARE", 2**60)
    with pytest.raises(NoRoom, match="GiB are free"):
        fetch(source(hub), model(hub), tmp_path / "m", DownloadOptions())
    assert hub.sent(SHARD) == 0


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, SIZE), max_size=4))
def test_from_any_byte_on_it_is_the_same_file(cuts: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("resume")
    with pytest.MonkeyPatch.context() as patch, Hub() as running:
        patch.setattr(asking, "FIRST_PAUSE", 0.02)
        running.add("o/target", {"config.json": "{}", SHARD: WEIGHTS})
        running.faults(SHARD, *(Cut(cut) for cut in cuts))
        fetch(source(running), model(running), directory, DownloadOptions())
        assert whole(directory)
        assert running.sent(SHARD) <= 1.05 * SIZE
