"""The question for an engine's configuration, and its answer in one line."""

import pytest

from dflash_deploy.intake.documents import EngineAnswer, parse_document
from dflash_deploy.serve import answer, ask
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.engines import vllm as engine
from dflash_deploy.serve.engines.installed import InstalledEngine
from dflash_deploy.serve.engines.vllm_question import sentence
from dflash_deploy.serve.launch import FAMILY
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import SECRET_NAMES

ENVIRONMENT = {"MODEL_PATH": "/m", "DFLASH_DRAFTER": "/d", "DFLASH_NUM_SPEC_TOKENS": "7", "PATH": "/usr/bin"}
SECRETS = dict.fromkeys(SECRET_NAMES, "a-secret-0123456789")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "installed_vllm", lambda: InstalledEngine("vllm", "0.33.0", False, ("vllm",)))


def read(capfd: pytest.CaptureFixture[str]) -> EngineAnswer:
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith(answer.MARK)]
    return parse_document(line.removeprefix(answer.MARK), EngineAnswer)


def test_the_question_has_the_arguments_of_a_start_and_no_secret() -> None:
    asked = ask.question(ENVIRONMENT | SECRETS)
    assert asked is not None
    assert asked.arguments[:2] == ("serve", "/m")
    assert "--speculative-config" in asked.arguments
    shown = f"{asked.command} {asked.environment}"
    assert "a-secret" not in shown
    assert asked.environment["HF_HUB_OFFLINE"] == "1"


def test_settings_that_cannot_start_are_refused_as_by_a_start() -> None:
    with pytest.raises(Refused, match="EXTRA_ARGS holds --max-model-len"):
        ask.question(ENVIRONMENT | {"EXTRA_ARGS": "--max-model-len 5"})


def test_an_answer_is_one_line_that_can_be_read(capfd: pytest.CaptureFixture[str]) -> None:
    answer.accepted({"attention_backend": "FLASH_ATTN", "block_size": 16})
    assert dict(read(capfd).decided) == {"attention_backend": "FLASH_ATTN", "block_size": "16"}
    answer.refused("No valid attention backend\nfound for cuda \N{SNOWMAN} \x1b[31m")
    assert read(capfd).refused == "No valid attention backend found for cuda \N{SNOWMAN} \x1b[31m"
    answer.refused("x" * 100_000)
    assert len(read(capfd).refused) == answer.LONGEST
    answer.refused("")
    assert read(capfd).refused
    answer.unaskable("it has no way")
    assert read(capfd).unaskable == "it has no way"


def test_an_engine_without_a_way_says_so(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(name for name, one in ENGINES.items() if one.title == "SGLang")
    for key, value in (ENVIRONMENT | {FAMILY: name}).items():
        monkeypatch.setenv(key, value)
    assert ask.main() == 0
    assert "SGLang" in read(capfd).unaskable


class _Validation(ValueError):
    """pydantic's ValidationError, as far as it is read."""

    def errors(self) -> list[dict[str, object]]:
        return [
            {"type": "value_error", "loc": (), "msg": "Value error, max_model_len (9) is too long", "input": "secret"},
            {"type": "missing", "loc": ("a",), "msg": "Field required"},
        ]


def test_the_sentence_of_an_error_is_the_engines_own() -> None:
    assert sentence(_Validation("7 lines of values")) == "max_model_len (9) is too long"
    assert sentence(ValueError("No valid attention backend")) == "No valid attention backend"
    assert sentence(KeyError("x")) == "KeyError: 'x'"
