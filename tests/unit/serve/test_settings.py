"""Environment variables are read by kind, and complaints name the variable."""

import re

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.catalog.settings import manual
from dflash_deploy.serve.engines import ENGINES, Engine
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Settings

BARE = {"MODEL_PATH": "/models/target"}


def test_what_is_absent_or_empty_is_left_to_the_engine() -> None:
    assert Settings(BARE) == Settings(BARE | {"MAX_MODEL_LEN": "", "KV_CACHE_DTYPE": " "})
    assert Settings(BARE).max_model_len is None


@pytest.mark.parametrize("off", ["", "off", "OFF", "none"])
def test_drafting_is_switched_off_by_name(off: str) -> None:
    assert Settings(BARE | {"DFLASH_DRAFTER": off, "DRAFTER_PATH": "/models/drafter"}).speculation is None


def test_the_drafters_directory_counts_more_than_its_name() -> None:
    drafter = Settings(BARE | {"DFLASH_DRAFTER": "z-lab/x", "DRAFTER_PATH": "/models/drafter"}).speculation
    assert drafter is not None
    assert (drafter.path, drafter.draft_tokens) == ("/models/drafter", 15)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_MODEL_LEN", "64kb"),
        ("MAX_NUM_SEQS", "0"),
        ("MAX_NUM_SEQS", "-1"),
        ("MAX_NUM_SEQS", "²"),
        ("GPU_MEMORY_UTILIZATION", "85"),
        ("GPU_MEMORY_UTILIZATION", "nan"),
        ("ENFORCE_EAGER", "maybe"),
        ("EXTRA_ARGS", "'unclosed"),
        ("MAX_MODEL_LEN", "9" * 5000),
        ("MODEL_FILE", "../other.gguf"),
        ("ENABLE_THINKING", "sometimes"),
        ("DFLASH_PORT", "70000"),
        ("MAX_BODY_MIB", "0"),
        ("ALLOWED_MEDIA_DOMAINS", "https://images.example.com"),
        ("ALLOWED_MEDIA_DOMAINS", "*"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(Refused, match=name) as refusal:
        Settings(BARE | {name: value})
    assert refusal.value.hint


@pytest.mark.parametrize("name", [field.name for field in Settings.fields() if field.unit in {"directory", "file"}])
@pytest.mark.parametrize("value", ["$HOME/models", "${HOME}/models", "/data/a$b", "models$"])
def test_a_path_has_no_variables(name: str, value: str) -> None:
    if getattr(Settings, name.lower()).internal:
        Settings(BARE | {name: value})
        return
    with pytest.raises(Refused, match=f"{name}={re.escape(value)} has a \\$") as refusal:
        Settings(BARE | {name: value})
    assert "~/models" in refusal.value.hint


@pytest.mark.parametrize("name", ["MODEL_FILE", "MMPROJ_FILE", "DRAFTER_FILE", "DFLASH_DRAFTER"])
def test_a_file_and_a_drafter_have_no_variables(name: str) -> None:
    with pytest.raises(Refused, match=name):
        Settings(BARE | {name: "$NAME/model.gguf"})


@pytest.mark.parametrize("written", ["1-4", "2-4:7", "1-2:7,4-8:3", "1-4:7,3-8:3", "1-4:7,", "4-1:7", "1-4:16", "1:-1"])
def test_a_schedule_has_no_gaps_and_no_more_than_the_most(written: str) -> None:
    with pytest.raises(Refused, match="DFLASH_SPEC_SCHEDULE") as refusal:
        Settings(BARE | {"DFLASH_DRAFTER": "/d", "DFLASH_SPEC_SCHEDULE": written})
    assert refusal.value.hint


def test_a_schedule_is_read_range_by_range() -> None:
    drafter = Settings(BARE | {"DFLASH_DRAFTER": "/d", "DFLASH_SPEC_SCHEDULE": "1:15, 2-8:3,9-64:0"}).speculation
    assert drafter is not None
    assert drafter.schedule == ((1, 1, 15), (2, 8, 3), (9, 64, 0))


def test_a_missing_target_is_refused() -> None:
    with pytest.raises(Refused, match="MODEL_PATH"):
        _ = Settings({}).target


def test_json_with_spaces_survives_in_extra_args() -> None:
    settings = Settings(BARE | {"EXTRA_ARGS": """--compilation-config '{"mode": 0}' --seed 1"""})
    assert settings.extra_args == ("--compilation-config", '{"mode": 0}', "--seed", "1")


def test_several_served_names_are_split() -> None:
    assert Settings(BARE | {"SERVED_MODEL_NAME": "a b"}).served_model_name == ("a", "b")


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_manual_lists_the_settings_of_its_engine_in_their_order(engine: Engine) -> None:
    assert list(manual(engine.template)) == [field.name for field in engine.settings]


USED_ON_THE_HOST = {
    *(Settings.dflash_profile, Settings.dflash_pair, Settings.dflash_engine, Settings.dflash_goal),
    *(Settings.dflash_runtime, Settings.llama_server, Settings.model_host_path, Settings.drafter_host_path),
    *(Settings.dflash_image, Settings.dflash_base_image, Settings.dflash_shm_size),
    Settings.dflash_domain,
}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_the_compose_fragments_hand_over_every_setting_of_their_engine(engine: Engine) -> None:
    names = ("base", *engine.fragments, "drafter", "nodes", "cpu")
    text = "".join(asset("compose", f"{name}.yaml").read_text(encoding="utf-8") for name in names)
    handed_over = set(re.findall(r"^      ([A-Z][A-Z0-9_]*): ", text, re.MULTILINE))
    needed = {field.name for field in engine.settings if field not in USED_ON_THE_HOST and not field.secret}
    assert not needed - handed_over


def test_a_value_is_written_as_it_is_read_back() -> None:
    written = {
        "MAX_MODEL_LEN": "4096",
        "ENFORCE_EAGER": "on",
        "GPU_MEMORY_UTILIZATION": "0.9",
        "SERVED_MODEL_NAME": "a b",
    }
    settings = Settings(written)
    for field in Settings.fields():
        if field.name in written:
            assert field.written(field.read(written)) == written[field.name]
    assert settings.max_model_len == 4096
    assert settings.gpu_memory_utilization == 0.9


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Settings({}).max_num_seqs = 3


def test_a_setting_prints_as_its_name() -> None:
    assert f"{Settings.max_model_len}" == "MAX_MODEL_LEN"
    assert "max_model_len" not in repr(Settings({}))
    assert "MAX_MODEL_LEN=4096" in repr(Settings({"MAX_MODEL_LEN": "4096"}))
    assert Settings({"MAX_MODEL_LEN": "4096"}) == Settings({"MAX_MODEL_LEN": " 4096 "})


def test_settings_hold_no_secret() -> None:
    settings = Settings({"VLLM_API_KEY": "a-key-of-sixteen-and-more"})
    assert "of-sixteen" not in repr(settings) + str(dict(settings.typed))
    with pytest.raises(AttributeError, match="VLLM_API_KEY is a secret"):
        _ = settings.vllm_api_key
