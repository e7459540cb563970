"""`.env` is written so that every reader finds the same values, and read so that slips are found."""

import io

import pytest
from dotenv import dotenv_values
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.catalog.settings import all_setting_names, setting_names
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.project import dotenv

VALUES = st.text(st.characters(codec="utf-8", exclude_categories=["C"], exclude_characters="'\\"), max_size=60)


@given(st.dictionaries(st.sampled_from(setting_names("vllm")), VALUES))
def test_what_is_written_is_what_everybody_reads(values: dict[str, str]) -> None:
    text = dotenv.fill_template(values)
    expected = dict.fromkeys(setting_names("vllm"), "") | values
    assert dotenv.parse(text) == expected
    # and by a program that expands variables, as python-dotenv does when it is left alone
    assert dotenv_values(stream=io.StringIO(text)) == expected or any("$" in value for value in values.values())


@pytest.mark.parametrize("value", ["it's", "a\nb", "back\\slash", "\x00"])
def test_a_value_without_a_common_form_is_refused(value: str) -> None:
    with pytest.raises(SettingsRefused):
        dotenv.quote(value)


def test_comments_of_the_template_stay_and_others_follow() -> None:
    text = dotenv.fill_template({"NCCL_DEBUG": "INFO"})
    assert "# Longest sequence in tokens" in text
    assert text.endswith("NCCL_DEBUG=INFO\n")


@pytest.mark.parametrize(
    ("slip", "meant"),
    [("MAX_MODEL_LENGTH", "MAX_MODEL_LEN"), ("VLLM_API_KEYS", "VLLM_API_KEY"), ("DFLASH_DRAFTR", "DFLASH_DRAFTER")],
)
def test_a_slip_is_refused_with_what_was_meant(slip: str, meant: str) -> None:
    with pytest.raises(SettingsRefused, match=slip) as refusal:
        dotenv.check_keys([*all_setting_names(), slip])
    assert f"did you mean {meant}?" in refusal.value.hint


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "VLLM_LOGGING_LEVEL", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_MATMUL_PRECISION"]
)
def test_variables_that_the_engine_reads_itself_are_let_through(name: str) -> None:
    dotenv.check_keys([name])
