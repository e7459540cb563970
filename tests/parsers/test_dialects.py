"""The parsers that chat templates show, and the quantizations that config.json names, are in the engines' own lists."""

import re

import pytest

from dflash_deploy.catalog.load import load_catalog, load_dialects
from dflash_deploy.plan.described import METHODS
from dflash_deploy.serve.settings import Settings
from tests.support.parsers.fetch import fetched

VLLM, SGLANG = "vllm-0.33", "sglang-0.5.23"
FILES = {
    (VLLM, "tools"): ("vllm-0.33.0", "vllm/tool_parsers/__init__.py"),
    (VLLM, "reasoning"): ("vllm-0.33.0", "vllm/reasoning/__init__.py"),
    (SGLANG, "tools"): (SGLANG, "sglang/srt/function_call/function_call_parser.py"),
    (SGLANG, "reasoning"): (SGLANG, "sglang/srt/parser/reasoning_parser.py"),
}
METHOD = {"auto-round": "inc", "gptq": "auto_gptq"}  # the loader of vLLM for a `quant_method`, if it has another name


def names(release: str, file: str) -> set[str]:
    return set(re.findall(r'"([\w-]+)"', (fetched(release) / file).read_text(encoding="utf-8")))


@pytest.mark.parametrize(("engine", "kind"), FILES)
def test_each_parser_of_a_chat_template_is_one_of_the_engine(engine: str, kind: str) -> None:
    setting = {"tools": Settings.tool_call_parser, "reasoning": Settings.reasoning_parser}[kind]
    shown = {str(found) for row in load_dialects() if (found := getattr(row, kind))}
    translated = {load_catalog().engines[engine].parser(setting.name, name) for name in shown}
    assert translated - {""} <= names(*FILES[engine, kind])
    assert len(translated) > 10


@pytest.mark.parametrize(
    ("engine", "release", "folder"), [(VLLM, "vllm-0.33.0", "vllm/model_executor"), (SGLANG, SGLANG, "sglang/srt")]
)
def test_each_quantization_that_an_engine_loads_is_in_its_list(engine: str, release: str, folder: str) -> None:
    known = names(release, f"{folder}/layers/quantization/__init__.py")
    loads = load_catalog().engines[engine].loads
    methods = {name.partition(" ")[0] for name, quantization in METHODS.items() if quantization in loads}
    assert {name for name in methods if not {name, METHOD.get(name, name), f"{name}_marlin"} & known} <= {"fbgemm_fp8"}
    assert ("bitsandbytes" in known) == ("bitsandbytes" in loads)
