"""`up` asks the engine before it fetches weights, once for the same question: a hub that counts bytes."""

import json
import shutil
from dataclasses import replace

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import EngineMissing, ExitCode
from dflash_deploy.operations import ask_engine
from dflash_deploy.operations.ask_engine import Heard
from dflash_deploy.operations.plan import plan as run_plan
from dflash_deploy.operations.reporter import SILENT as SILENT_REPORTER
from dflash_deploy.operations.up import start
from tests.support.asked import SILENT, Engine, Fetching, Notes, answered
from tests.support.box import DRAFTS, Box
from tests.support.cli import edit_env, invoke
from tests.support.hub import Hub


@pytest.mark.usefixtures("fetched")
def test_up_asks_before_it_fetches_and_once_for_the_same_question(hub: Hub, box: Box, engine: Engine) -> None:
    for _ in range(2):
        with pytest.raises(Fetching):
            start(box.directory)
    assert engine.asked == 1
    # another setting is another question
    edit_env(box.directory, MAX_NUM_SEQS="2")
    with pytest.raises(Fetching):
        start(box.directory)
    assert engine.asked == 2
    assert hub.sent("model.safetensors") == 0
    remembered = box.directory / ".dflash" / "asked"
    assert (remembered.stat().st_mode & 0o777, len(remembered.read_text())) == (0o600, 65)
    for damaged in (b"", b"\xff" * 1000, b"another digest\n"):
        remembered.write_bytes(damaged)
        with pytest.raises(Fetching):
            start(box.directory)
    assert engine.asked == 5


@pytest.mark.usefixtures("fetched")
def test_another_locked_commit_program_or_image_is_another_question(
    hub: Hub, box: Box, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask_twice() -> int:
        for _ in range(2):
            with pytest.raises(Fetching):
                start(box.directory)
        return engine.asked

    assert ask_twice() == 1
    for count, size in ((2, 1000), (3, 1001)):
        hub.publish("o/drafter", {"config.json": json.dumps(json.loads(DRAFTS) | {"vocab_size": size})})
        box.pull("--update").succeeded()
        shutil.rmtree(box.models)
        assert ask_twice() == count
    monkeypatch.setattr(ask_engine, "__version__", "another")
    assert ask_twice() == 4


def test_an_image_that_was_built_again_is_another_question(
    box: Box, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(run_plan(box.directory).plan, runtime="compose")
    identity = "sha256:1"
    monkeypatch.setattr(ask_engine, "image_id", lambda name: identity)
    for number, asked in (("1", 1), ("1", 1), ("2", 2), ("2", 2)):
        identity = f"sha256:{number}"
        ask_engine.ask_before_download(Deployment(box.directory), plan, SILENT_REPORTER)
        assert engine.asked == asked


@pytest.mark.usefixtures("fetched")
def test_up_fetches_a_damaged_config_json_again(box: Box, engine: Engine) -> None:
    (box.models / "target").mkdir(parents=True)
    (box.models / "target" / "config.json").write_text("{")
    notes = Notes()
    with pytest.raises(Fetching):
        start(box.directory, reporter=notes)
    assert engine.asked == 0
    assert any("config.json is not valid JSON" in note for note in notes.said), notes.said


def test_up_ends_with_code_3_if_the_engine_refuses(hub: Hub, box: Box, engine: Engine) -> None:
    engine.heard = answered({"refused": "No valid attention backend found for cuda"})
    for count in (1, 2):
        ran = invoke("up", "--dir", str(box.directory))
        assert ran.code is ExitCode.PREFLIGHT
        assert "error: vLLM 0.32.0 (CPU) refuses this: No valid attention backend found for cuda" in ran.err
        # a refusal is not remembered: the engine may have been changed
        assert engine.asked == count
    assert hub.sent("model.safetensors") == 0
    assert not box.models.exists()
    assert not (box.directory / ".dflash" / "asked").exists()


def test_up_ends_with_code_3_if_a_rule_refuses_what_was_read(hub: Hub, box: Box, engine: Engine) -> None:
    hub.publish("o/drafter", {"config.json": json.dumps(json.loads(DRAFTS) | {"hidden_size": 128})})
    for heard in (engine.heard, Heard(None, "")):
        engine.heard = heard
        ran = invoke("up", "--dir", str(box.directory))
        assert ran.code is ExitCode.PREFLIGHT
        assert "128" in ran.err
    assert hub.sent("model.safetensors") == 0


@pytest.mark.usefixtures("fetched")
def test_up_goes_on_without_an_answer_and_says_so(box: Box, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for heard, said in [*SILENT, (answered({"unaskable": "it has no way"}), "it has no way")]:
        engine.heard = heard
        notes = Notes()
        with pytest.raises(Fetching):
            start(box.directory, reporter=notes)
        assert any(said in note for note in notes.said)
    assert not (box.directory / ".dflash" / "asked").exists()

    def missing(*_: object, **__: object) -> Heard:
        raise EngineMissing("the image is not on this machine", hint="")

    monkeypatch.setattr(ask_engine, "ask", missing)
    notes = Notes()
    with pytest.raises(Fetching):
        start(box.directory, reporter=notes)
    assert "the engine is not asked before the download: the image is not on this machine" in notes.said


@pytest.mark.usefixtures("fetched")
def test_up_asks_nothing_if_it_is_told_so(hub: Hub, box: Box, engine: Engine) -> None:
    with pytest.raises(Fetching):
        start(box.directory, ask_engine=False)
    assert engine.asked == 0
    assert hub.sent("config.json") == 0
