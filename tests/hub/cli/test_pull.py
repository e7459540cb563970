"""`pull` from end to end: the command, a hub on this machine, a catalog of one's own that names its repositories."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support import gguf
from tests.support.box import CONFIG, DRAFTER, DRAFTS, LOCAL, TARGET, Box
from tests.support.cli import dflash, edit_env
from tests.support.hub import Generated, Held, Hub, read
from tests.support.hub.faults import Drip, Halt

NOBODY = 65534
LISTEN = 20.0


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(accounts={"hf_reader": "reader"}) as running:
        running.add("o/target", {"config.json": CONFIG, "tokenizer.json": "{}", "model.safetensors": TARGET})
        running.add("o/drafter", {"config.json": DRAFTS, "model.safetensors": DRAFTER, "dflash.py": "code"})
        yield running


@pytest.fixture
def box(hub: Hub, tmp_path: Path) -> Box:
    return Box(hub, tmp_path)


def test_target_and_drafter_arrive_and_are_locked(hub: Hub, box: Box) -> None:
    data = box.pull("--json").succeeded().document["data"]
    # config.json comes first, to see whether they go together
    counts = [(row["role"], row["there"] + row["fetched"]) for row in data["models"]]
    assert counts == [("target", 3), ("drafter", 2)]
    assert box.whole()
    assert {role: model["repo"] for role, model in box.lock.items()} == {"target": "o/target", "drafter": "o/drafter"}
    # code of a repository is not run, and not fetched
    assert not (box.models / "drafter" / "dflash.py").exists()
    hub.forget()
    again = box.pull("--json").succeeded().document["data"]
    assert [row["there"] for row in again["models"]] == [3, 2]
    # what is locked and there needs no hub
    assert hub.requests() == []


def test_offline_says_what_is_missing_and_asks_nobody(hub: Hub, box: Box) -> None:
    assert box.pull("--offline").code is ExitCode.DOWNLOAD
    box.pull().succeeded()
    (box.models / "target" / "tokenizer.json").unlink()
    hub.forget()
    ran = box.pull("--offline")
    assert ran.code is ExitCode.DOWNLOAD
    assert "tokenizer.json" in ran.err
    assert hub.requests() == []
    box.pull().succeeded()
    box.pull("--offline").succeeded()


def test_hf_hub_offline_is_honoured_like_offline(hub: Hub, box: Box) -> None:
    box.environment["HF_HUB_OFFLINE"] = "1"
    ran = box.pull()
    assert (ran.code, "HF_HUB_OFFLINE is set" in ran.err) == (ExitCode.DOWNLOAD, True)
    assert "without HF_HUB_OFFLINE" in ran.err
    for option in ("--update", "--check"):
        assert box.pull(option).code is ExitCode.USAGE
    assert hub.requests() == []
    box.environment["HF_HUB_OFFLINE"] = "0"
    box.pull().succeeded()
    hub.forget()
    box.environment["HF_HUB_OFFLINE"] = "yes"
    models = box.pull("--json").succeeded().document["data"]["models"]
    assert [(row["repo"], row["there"], row["fetched"]) for row in models] == [("o/target", 3, 0), ("o/drafter", 2, 0)]
    assert hub.requests() == []


def test_verify_reads_every_file_again(box: Box) -> None:
    box.pull().succeeded()
    box.pull("--verify").succeeded()
    shard = box.models / "target" / "model.safetensors"
    status = shard.stat()
    with shard.open("r+b") as file:
        file.seek(1000)
        file.write(b"\x00\xff")
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    ran = box.pull("--verify")
    assert ran.code is ExitCode.DOWNLOAD
    assert "model.safetensors" in ran.out + ran.err


def test_the_hub_has_moved_and_nothing_moves_unasked(hub: Hub, box: Box) -> None:
    box.pull().succeeded()
    locked = box.lock["drafter"]["commit"]
    newer = Generated(1_000_000, seed=9)
    hub.publish("o/drafter", {"config.json": DRAFTS, "model.safetensors": newer})
    assert box.pull("--check", "--json").succeeded().document["data"]["moved"] == {"o/drafter": ["model.safetensors"]}
    box.pull().succeeded()
    assert box.lock["drafter"]["commit"] == locked
    box.pull("--update").succeeded()
    assert box.lock["drafter"]["commit"] != locked
    assert (box.models / "drafter" / "model.safetensors").read_bytes() == b"".join(newer.pieces(0, newer.size))
    last = json.loads((box.directory / "dflash.lock.last").read_text())
    assert last["models"]["drafter"]["commit"] == locked


def start(box: Box) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "dflash_deploy", "pull", "--dir", str(box.directory)],
        env=os.environ | box.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for(condition: object, process: subprocess.Popen[bytes]) -> None:
    assert callable(condition)
    until = time.monotonic() + LISTEN
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_pull_that_was_ended_goes_on(hub: Hub, box: Box, how: signal.Signals) -> None:
    # slowly, so that little is under way when it is ended, and never to the end
    for fault in (Drip(400_000), Halt(2_000_000)):
        hub.faults("o/target/model.safetensors", fault, forever=True)
    running = start(box)
    wait_for(lambda: hub.sent("o/target/model.safetensors") > 1_000_000, running)
    running.send_signal(how)
    running.wait(LISTEN)
    assert not (box.models / "target" / "model.safetensors").exists()
    if how == signal.SIGINT:
        assert running.returncode == ExitCode.INTERRUPTED
    hub.heal()
    box.pull().succeeded()
    assert box.whole()
    assert hub.sent("o/target/model.safetensors") < 1.3 * TARGET.size


def test_a_drafter_of_another_target_is_refused_before_its_weights_are_fetched(hub: Hub, box: Box) -> None:
    other = json.dumps({"architectures": ["DFlashDraftModel"], "hidden_size": 128, "block_size": 8})
    hub.publish("o/drafter", {"config.json": other, "model.safetensors": DRAFTER})
    ran = box.pull()
    assert ran.code is ExitCode.PREFLIGHT
    assert "hidden size of 128" in ran.err
    assert hub.sent("*/model.safetensors") == 0


@pytest.mark.parametrize("layers", [{}, {"mtp_num_hidden_layers": 0}])
def test_a_target_without_mtp_head_is_refused_before_its_weights_are_fetched(
    hub: Hub, box: Box, layers: dict[str, int]
) -> None:
    hub.publish("o/target", {"config.json": json.dumps(json.loads(CONFIG) | layers), "model.safetensors": TARGET})
    edit_env(box.directory, DFLASH_DRAFTER="mtp")
    ran = box.pull()
    assert ran.code is ExitCode.PREFLIGHT
    assert "the target has no MTP head" in ran.err
    assert hub.sent("*/model.safetensors") == 0


GGUFS = """
name: local-gguf
title: A model of the tests, for llama.cpp
source: tests
shape: {layers: 4, hidden_size: 64, vocabulary: 1000, context: 4096, parameters: 5000000,
        full_attention: {layers: 4, heads: 4, kv_heads: 2, head_dim: 16}}
drafter: {repo: o/drafter-gguf, file: d.gguf, bytes: 1000000, source: tests, block_size: 8, layers: 1, hidden_size: 64,
          kv_heads: 2, head_dim: 16, architecture: dflash}
targets:
  - {name: local-gguf, title: A model of the tests, repo: o/target-gguf, file: t.gguf, bytes: 5000000, source: tests,
     quantisation: gguf, served_name: local}
"""


@pytest.mark.parametrize(
    ("drafter", "said"),
    [
        (gguf.model("dflash", ["a", "b"], embedding_length=128, block_size=8), "hidden size of 128"),
        (gguf.model("dflash", ["a", "b"], embedding_length=64, target_layers=[2, 9]), "reads layer 8"),
        (gguf.model("dflash", ["a", "c"], embedding_length=64), "tokens of the drafter's vocabulary"),
        (gguf.model("eagle3", ["a", "b"], embedding_length=64), "architecture is eagle3"),
    ],
)
def test_a_gguf_drafter_of_another_target_is_refused_before_it_is_fetched(
    hub: Hub, tmp_path: Path, drafter: bytes, said: str
) -> None:
    tensors = read(Generated(20_000_000, seed=4))
    target = gguf.model("qwen35", ["a", "b"], embedding_length=64, block_count=4)
    hub.add("o/target-gguf", {"t.gguf": Held(target + tensors)})
    hub.add("o/drafter-gguf", {"d.gguf": Held(drafter + tensors)})
    box = Box(hub, tmp_path, family=GGUFS, options=("--profile", "rtx-3090", "--model", "local-gguf"))
    edit_env(box.directory, DFLASH_NUM_SPEC_TOKENS="7")
    ran = box.pull()
    assert ran.code is ExitCode.PREFLIGHT
    assert said in ran.err
    # of 40 MB, two looks of one
    assert hub.sent() < 2_200_000


def test_a_directory_of_somebody_else_is_named(hub: Hub, tmp_path: Path) -> None:
    """Nothing is written, and the next step is said. Root gives up what lets it write everywhere."""
    theirs, give_up = Path("/usr/local/share"), []
    if os.geteuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        os.chown(theirs, NOBODY, NOBODY)
        give_up = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    box = Box(hub, tmp_path, options=(*LOCAL, "--models-dir", str(theirs)))
    ran = subprocess.run(
        [*give_up, sys.executable, "-m", "dflash_deploy", "pull", "--dir", str(box.directory)],
        env=os.environ | box.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == ExitCode.DOWNLOAD, ran.stderr
    assert f"{theirs}/target cannot be written: Permission denied" in ran.stderr
    assert "or change its owner" in ran.stderr
    assert not (theirs / "target").exists()


def test_the_hub_clients_own_cache_is_used_where_it_is_whole(hub: Hub, box: Box) -> None:
    command = [sys.executable, "-m", "huggingface_hub.cli.hf", "download", "o/target"]
    subprocess.run(command, env=os.environ | box.environment, check=True, capture_output=True)
    hub.forget()
    rows = box.pull("--json").succeeded().document["data"]["models"]
    assert rows[0]["reused"] >= 1
    assert hub.sent("o/target/model.safetensors") == 0
    assert not (box.models / "target" / "model.safetensors").is_symlink()
    assert box.whole()


def test_up_fetches_what_is_missing(hub: Hub, box: Box) -> None:
    # the weights of this test are none that an engine loads; what counts is that they are there when it is started
    ran = dflash("up", "--no-ask-engine", "--patience", "60", at=box.directory, environment=box.environment)
    assert "fetching them" in ran.err
    assert box.whole()
    dflash("down", at=box.directory, environment=box.environment)


def test_two_pulls_at_once_do_not_meet(hub: Hub, box: Box) -> None:
    hub.faults("o/target/model.safetensors", Halt(1_000_000), forever=True)
    first = start(box)
    try:
        wait_for(lambda: hub.sent("o/target/model.safetensors") > 500_000, first)
        second = box.pull()
    finally:
        hub.heal()
        ended = first.wait(60)
    assert second.code is ExitCode.PREFLIGHT
    assert "another command" in second.err
    assert ended == 0
    assert box.whole()


@pytest.mark.parametrize(
    ("name", "value"),
    [("HF_HUB_DOWNLOAD_TIMEOUT", "x"), ("ALL_PROXY", "socks5://bob:hunter2@127.0.0.1:9")],
)
def test_an_environment_that_cannot_be_used_is_a_wrong_setting(box: Box, name: str, value: str) -> None:
    ran = dflash("pull", at=box.directory, environment={**box.environment, name: value})
    assert ran.code is ExitCode.USAGE, ran.err
    assert name.removesuffix("DOWNLOAD_TIMEOUT") in ran.err
    assert "hunter2" not in ran.out + ran.err
