"""`set`: settings of `.env` changed one by one, checked as `up` checks them, all other lines kept."""

import stat
from pathlib import Path

import pytest

from dflash_deploy import planning
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import BadInput, PreflightRefused, SettingsRefused
from dflash_deploy.operations import plan
from dflash_deploy.operations.plan import init
from dflash_deploy.operations.set import assignments, change, settings
from dflash_deploy.plan.result import Choice
from tests.support.machines import MACHINES

H100 = MACHINES["h100"]


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (planning, plan):
        monkeypatch.setattr(module, "read_facts", lambda: H100)
    init(tmp_path, Choice(profile="h100", runtime="compose"))
    return tmp_path


def test_a_changed_setting_leaves_comments_keys_and_other_lines(box: Path) -> None:
    env = box / ".env"
    env.write_text(f"# mine\n{env.read_text()}NCCL_DEBUG=INFO\n")
    before = env.read_text()
    done = change(box, {"MAX_NUM_SEQS": "4", "DFLASH_PORT": "8000"})
    assert [(row.name, row.new) for row in done.changed] == [("MAX_NUM_SEQS", "4")]
    assert done.restarts == "engine"
    old = done.changed[0].old
    assert env.read_text() == before.replace(f"MAX_NUM_SEQS={old}", "MAX_NUM_SEQS=4")
    assert (box / ".env.last").read_text() == before
    assert stat.S_IMODE(env.stat().st_mode) == 0o600


def test_an_empty_value_restores_the_default_of_the_plan(box: Path) -> None:
    default = Deployment(box).values["GPU_MEMORY_UTILIZATION"]
    change(box, {"GPU_MEMORY_UTILIZATION": "0.8"})
    done = change(box, {"GPU_MEMORY_UTILIZATION": ""})
    assert [(row.old, row.new, row.default) for row in done.changed] == [("0.8", "", default)]
    assert "GPU_MEMORY_UTILIZATION" not in Deployment(box).values
    assert change(box, {"GPU_MEMORY_UTILIZATION": ""}).changed == ()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"MAX_NUM_SEQS": "many"}, "MAX_NUM_SEQS=many is not a positive whole number"),
        ({"DFLASH_PORT": "70000"}, "DFLASH_PORT=70000 is not a valid port"),
        ({"GPU_MEMORY_UTILIZATION": "1.5"}, "is not a fraction above 0"),
        ({"DFLASH_SPEC_SCHEDULE": "1-2:99"}, "more draft tokens"),
    ],
)
def test_a_value_of_the_wrong_kind_writes_nothing(box: Path, value: dict[str, str], says: str) -> None:
    before = (box / ".env").read_bytes()
    with pytest.raises(SettingsRefused, match=says):
        change(box, value)
    assert (box / ".env").read_bytes() == before


def test_what_up_would_refuse_is_not_written_and_what_was_refused_before_stops_nothing(box: Path) -> None:
    with pytest.raises(PreflightRefused, match="MAX_MODEL_LEN=4000000"):
        change(box, {"MAX_MODEL_LEN": "4000000"})
    env = box / ".env"
    env.write_text(env.read_text().replace("MAX_MODEL_LEN=", "MAX_MODEL_LEN=4000000 #"))
    assert change(box, {"DFLASH_PORT": "8123"}).changed[0].new == "8123"


def test_only_the_door_restarts_for_another_domain(box: Path) -> None:
    assert change(box, {"DFLASH_DOMAIN": "llm.example.com"}).restarts == "door"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("MAX_NUM_SEQ=8", "did you mean MAX_NUM_SEQS?"),
        ("MAX_NUM_SEQS", "such as MAX_NUM_SEQS=8"),
        ("VLLM_API_KEY=abc", "keys rotate"),
        ("DFLASH_API_KEYS=", "keys add"),
        ("HF_TOKEN=x", "into .env"),
    ],
)
def test_what_is_not_a_setting_or_a_secret_is_refused(word: str, hint: str) -> None:
    with pytest.raises(BadInput) as refused:
        assignments([word])
    assert hint in refused.value.hint
    assert "abc" not in refused.value.message


def test_names_are_read_in_any_case_and_variables_of_the_engine_are_let_through() -> None:
    assert assignments(["max_num_seqs= 8", "NCCL_DEBUG=INFO"]) == {"MAX_NUM_SEQS": "8", "NCCL_DEBUG": "INFO"}


def test_the_list_has_value_default_kind_and_meaning_of_the_engine_and_hides_secrets(box: Path) -> None:
    change(box, {"MAX_NUM_SEQS": "4"})
    rows = {row.name: row for row in settings(box).settings}
    assert (rows["MAX_NUM_SEQS"].value, rows["MAX_NUM_SEQS"].kind) == ("4", "a whole number from 1 on (sequences)")
    assert rows["MAX_NUM_SEQS"].default == "16"
    assert rows["VLLM_API_KEY"].secret
    assert Deployment(box).key.reveal() not in str(settings(box).document())
    assert "LLAMA_SERVER" not in rows
    assert [row.name for row in settings(box, "megapixels").settings] == ["MAX_IMAGE_MEGAPIXELS"]
    with pytest.raises(BadInput, match="no setting mentions"):
        settings(box, "zebra")


def test_without_a_deployment_the_list_is_that_of_the_default_engine(tmp_path: Path) -> None:
    assert {row.value for row in settings(tmp_path).settings} == {""}
