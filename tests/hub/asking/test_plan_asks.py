"""`plan --ask-engine` fetches no weights and keeps nothing: a hub that counts bytes, and a scripted engine."""

import json
from pathlib import Path

import pytest

from dflash_deploy.errors import EngineMissing, ExitCode, HubUnreachable, PreflightRefused, WeightsMissing
from dflash_deploy.operations.ask_engine import Heard, ask_engine
from tests.support.asked import SILENT, TOKENIZER, Engine, answered
from tests.support.box import CONFIG, DRAFTS, Box
from tests.support.cli import edit_env, invoke
from tests.support.hub import Hub

KEY = "a-key-of-this-test-0123456789"


def written(box: Box) -> set[Path]:
    return set(box.directory.parent.rglob("*"))


def test_no_weights_are_fetched_and_nothing_is_kept(hub: Hub, box: Box, engine: Engine) -> None:
    before = written(box)
    asked = ask_engine(box.directory)
    assert (asked.verdict, asked.decided, asked.failure) == ("accepts", {"attention_backend": "CPU_ATTN"}, None)
    wanted = {"target": {"config.json": CONFIG, "tokenizer.json": TOKENIZER}, "drafter": {"config.json": DRAFTS}}
    kept = {
        role: {name: text for name, text in files.items() if name[0] != "."} for role, files in engine.files.items()
    }
    assert kept == wanted
    assert hub.sent("model.safetensors") == 0
    assert hub.sent("config.json") == len(CONFIG) + len(DRAFTS)
    assert hub.sent("tokenizer.json") == len(TOKENIZER)
    assert written(box) == before
    assert not any(place.exists() for place in engine.places)


def test_weights_on_disk_need_no_hub(hub: Hub, box: Box, engine: Engine) -> None:
    box.pull().succeeded()
    hub.forget()
    ask_engine(box.directory)
    assert hub.requests() == []
    assert engine.files["target"]["tokenizer.json"] == TOKENIZER
    assert not [name for files in engine.files.values() for name in files if name.endswith(".safetensors")]


def test_what_an_interrupted_download_lacks_is_fetched(hub: Hub, box: Box, engine: Engine) -> None:
    hub.publish("o/target", {"preprocessor_config.json": "{}"})
    target = box.models / "target"
    target.mkdir(parents=True)
    (target / "config.json").write_text(CONFIG)
    ask_engine(box.directory)
    assert {"tokenizer.json", "preprocessor_config.json"} <= set(engine.files["target"])
    assert hub.sent("config.json") == len(DRAFTS)
    assert [file.name for file in target.iterdir()] == ["config.json"]
    # with a lock the processor of images is missed too
    box.pull().succeeded()
    (target / "preprocessor_config.json").unlink()
    ask_engine(box.directory)
    assert engine.files["target"]["preprocessor_config.json"] == "{}"


def test_an_interrupted_download_offline_is_asked_as_it_is(
    hub: Hub, box: Box, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for role, config in (("target", CONFIG), ("drafter", DRAFTS)):
        (box.models / role).mkdir(parents=True)
        (box.models / role / "config.json").write_text(config)
    ask_engine(box.directory)
    assert (list(engine.files["target"]), hub.requests()) == (["config.json"], [])


def test_the_engines_own_sentence_is_shown_with_the_fix_of_the_rule(box: Box, engine: Engine) -> None:
    edit_env(box.directory, KV_CACHE_DTYPE="fp7")
    engine.heard = answered({"refused": "--kv-cache-dtype: invalid choice: 'fp7'"})
    failure = ask_engine(box.directory).failure
    assert isinstance(failure, PreflightRefused)
    assert failure.message == "vLLM 0.32.0 (CPU) refuses this: --kv-cache-dtype: invalid choice: 'fp7'"
    assert failure.hint == "choose one of auto, bfloat16"


def test_the_command_shows_it_with_code_3(box: Box, engine: Engine) -> None:
    engine.heard = answered({"refused": "No valid attention backend found for cuda"})
    ran = invoke("plan", "--ask-engine", "--dir", str(box.directory))
    assert ran.code is ExitCode.PREFLIGHT
    assert "asked    vLLM 0.32.0 (CPU) refuses: No valid attention backend found for cuda" in ran.out
    assert "error: vLLM 0.32.0 (CPU) refuses this: No valid attention backend" in ran.err
    document = invoke("plan", "--ask-engine", "--json", "--dir", str(box.directory)).document
    assert document["data"]["asked"]["verdict"] == "refuses"
    assert document["error"]["code"] == ExitCode.PREFLIGHT


def test_without_a_rule_the_fix_is_that_of_the_known_failure(box: Box, engine: Engine) -> None:
    said = "User-specified max_model_len (9) is greater than the derived max_model_len (max_position_embeddings=4)"
    engine.heard = answered({"refused": said})
    failure = ask_engine(box.directory).failure
    assert failure is not None
    assert "MAX_MODEL_LEN" in failure.hint


def test_a_rule_that_refuses_what_the_engine_accepts_still_refuses(hub: Hub, box: Box, engine: Engine) -> None:
    hub.publish("o/drafter", {"config.json": json.dumps(json.loads(DRAFTS) | {"hidden_size": 128})})
    asked = ask_engine(box.directory)
    assert asked.verdict == "accepts"
    assert asked.failure is not None
    assert "128" in asked.failure.message
    assert hub.sent("model.safetensors") == 0


def test_an_engine_without_an_answer_is_one_clear_line(box: Box, engine: Engine) -> None:
    for heard, said in SILENT:
        engine.heard = heard
        failure = ask_engine(box.directory).failure
        assert isinstance(failure, PreflightRefused)
        assert said in failure.message
        assert "\n" not in failure.message


def test_an_engine_that_has_no_way_to_be_asked_is_no_failure(box: Box, engine: Engine) -> None:
    engine.heard = answered({"unaskable": "it has no way"})
    asked = ask_engine(box.directory)
    assert (asked.verdict, asked.failure) == ("cannot be asked", None)


def test_secrets_that_the_engine_prints_are_redacted(box: Box, engine: Engine) -> None:
    edit_env(box.directory, VLLM_API_KEY=KEY)
    token = "hf_" + "a" * 30
    for heard in (answered({"refused": f"{KEY} {token}"}), Heard(1, f"{KEY} {token}")):
        engine.heard = heard
        asked = ask_engine(box.directory)
        assert asked.failure is not None
        shown = f"{asked.failure.message} {asked.failure.detail} {asked.document()}"
        assert (KEY in shown, token in shown, "[redacted]" in shown) == (False, False, True)


DAMAGED = ["", "{", "not JSON", "[]", "[" * 100_000, '{"a":' * 100_000, '{"a": NaN}', "{}{}"]


def test_a_damaged_config_json_is_named_before_the_engine_is_asked(box: Box, engine: Engine) -> None:
    (box.models / "target").mkdir(parents=True)
    for content in DAMAGED:
        (box.models / "target" / "config.json").write_text(content)
        with pytest.raises(WeightsMissing, match=r"config\.json"):
            ask_engine(box.directory)
    assert engine.places == ()


def test_offline_it_says_what_is_missing(hub: Hub, box: Box, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(WeightsMissing, match="HF_HUB_OFFLINE is set"):
        ask_engine(box.directory)
    assert hub.requests() == []


def test_a_hub_that_does_not_answer_is_named(box: Box, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_deploy.weights.hub.FIRST_PAUSE", 0.01)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubUnreachable):
        ask_engine(box.directory)


def test_an_engine_that_is_not_installed_is_named(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_deploy.serve.engines.vllm.installed_vllm", lambda: None)
    with pytest.raises(EngineMissing, match="vLLM is not installed"):
        ask_engine(box.directory)
