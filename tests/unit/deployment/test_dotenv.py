"""`.env` is written so that every reader finds the same values, and read so that slips are found."""

import io

import pytest
from dotenv import dotenv_values
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.catalog.settings import all_setting_names, setting_names
from dflash_deploy.deployment import dotenv
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings

VALUES = st.text(st.characters(codec="utf-8", exclude_categories=["C"], exclude_characters="\\"), max_size=60).filter(
    lambda value: not {"'", "$"} <= set(value)
)


@given(st.dictionaries(st.sampled_from(setting_names("vllm")), VALUES))
def test_what_is_written_is_what_everybody_reads(values: dict[str, str]) -> None:
    # no secret has a quote
    values = {name: value.replace("'", "") if name in SECRET_NAMES else value for name, value in values.items()}
    text = dotenv.fill_template(values)
    expected = {name: value for name, value in values.items() if value}
    assert dotenv.parse(text) == expected
    # and by a program that expands variables, as python-dotenv does when it is left alone
    assert dotenv_values(stream=io.StringIO(text)) == expected or any("$" in value for value in values.values())


@pytest.mark.parametrize("value", ["it's $1", "a\nb", "back\\slash", "\x00"])
def test_a_value_without_a_common_form_is_refused(value: str) -> None:
    with pytest.raises(SettingsRefused):
        dotenv.quote(value)


def test_a_quote_in_a_secret_is_refused() -> None:
    with pytest.raises(SettingsRefused, match="a quote cannot be written"):
        dotenv.quote("it's", "VLLM_API_KEY")
    assert dotenv.quote("it's", "EXTRA_ARGS") == '"it\'s"'


def test_only_what_has_a_value_is_written_in_the_sections_of_the_manual_and_others_follow() -> None:
    text = dotenv.fill_template({"NCCL_DEBUG": "INFO", "MAX_MODEL_LEN": "8192", "MAX_NUM_SEQS": ""})
    assert "dflash-deploy set --list" in text.partition("\n")[0]
    assert text.removeprefix(dotenv.HEAD).splitlines() == [
        "# Sizes",
        "MAX_MODEL_LEN=8192",
        "# Passed to the engine unchanged",
        "NCCL_DEBUG=INFO",
    ]


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        (f"{Settings.max_model_len}GTH", Settings.max_model_len.name),
        ("VLLM_API_KEYS", "VLLM_API_KEY"),
        ("DFLASH_DRAFTR", "DFLASH_DRAFTER"),
    ],
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


LINES = st.lists(
    st.sampled_from(
        ["# VLLM_API_KEY=of-a-comment", "", "  ", "export NODES=2", "HF_TOKEN='x' # mine", "MODEL_PATH=/käse"]
    ),
    max_size=5,
)
KEYED = st.sampled_from(
    [
        "VLLM_API_KEY={}",
        "export VLLM_API_KEY={}",
        "  VLLM_API_KEY = {}",
        "VLLM_API_KEY='{}'",
        'VLLM_API_KEY="{}"  # of the team',
        "VLLM_API_KEY={} # of the team",
        "VLLM_API_KEY= # none yet",
        "VLLM_API_KEY",
        "VLLM_API_KEY='{} with # a blank'",
    ]
)
OLD, NEW = "the-key-of-yesterday", "the-key-of-tomorrow"


@given(st.lists(KEYED, max_size=3), LINES, LINES, st.sampled_from(["\n", "\r\n"]))
def test_a_setting_is_removed_and_all_else_stays(
    keyed: list[str], before: list[str], after: list[str], end: str
) -> None:
    text = end.join([*before, *(line.format(OLD) for line in keyed), *after]) + end
    removed = dotenv.without(text, "VLLM_API_KEY")
    assert removed.replace(end, "") == "".join([*before, *after])


@given(st.lists(KEYED, max_size=3), LINES, LINES, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_a_replaced_value_leaves_all_else_as_it_was(
    keyed: list[str], before: list[str], after: list[str], end: str, ended: bool
) -> None:
    text = end.join([*before, *(line.format(OLD) for line in keyed), *after]) + (end if ended else "")
    changed = dotenv.replace_value(text, "VLLM_API_KEY", NEW)
    assert OLD not in changed
    assert dotenv.parse(changed) == dotenv.parse(text) | {"VLLM_API_KEY": NEW}
    # line by line: those that set the key have the new one, the others are the same to the byte
    kept = changed.split(end)
    assert [kept[number] for number in range(len(before))] == before or not keyed
    for line, was in zip(kept[len(before) :], keyed, strict=False):
        assert line.partition("=")[0].strip().removeprefix("export ").strip() == "VLLM_API_KEY"
        assert ("# of the team" in line) == ("# of the team" in was)
    if keyed and ended:
        assert kept[len(before) + len(keyed) : -1] == after


@given(st.lists(KEYED, min_size=1, max_size=2), LINES, LINES, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_the_reason_of_a_value_stands_before_it_once(
    keyed: list[str], before: list[str], after: list[str], end: str, marked: bool
) -> None:
    text = end.join([*before, *(line.format(NEW) for line in keyed), *after]) + end
    text = f"\ufeff{text}" if marked else text
    first = dotenv.with_comments(text, "VLLM_API_KEY", ["measured", "with\nthree lines"])
    again = dotenv.with_comments(first, "VLLM_API_KEY", ["measured later"])
    for changed, why in ((first, ["#= measured", "#= with three lines"]), (again, ["#= measured later"])):
        assert dotenv.parse(changed) == dotenv.parse(text)
        lines = changed.removeprefix("\ufeff").split(end)
        assert lines[len(before) : len(before) + len(why)] == why
        assert [line for line in lines if line not in why] == text.removeprefix("\ufeff").split(end)
    assert again.startswith("\ufeff") is marked


def test_a_line_that_cannot_be_read_is_not_left_beside_the_new_one() -> None:
    with pytest.raises(SettingsRefused, match="VLLM_API_KEY cannot be parsed"):
        dotenv.replace_value(f"VLLM_API_KEY='{OLD}\nMODEL_PATH=/m\n", "VLLM_API_KEY", NEW)
