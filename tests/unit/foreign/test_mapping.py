"""Each item of a recipe ends in one way, with a reason, and a plan with what was taken over."""

from collections import Counter
from typing import Any

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.foreign.mapping import FATES, Translated
from dflash_deploy.foreign.rules import container_rules, engine_rules
from dflash_deploy.operations.foreign import ForeignPlan, plan_from, recipe_text
from dflash_deploy.plan.result import Choice
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.settings import Settings
from tests.support.documents import ROOT
from tests.support.machines import MACHINES
from tests.unit.foreign.published import Published, counted, published, totals

VLLM = "vllm serve Qwen/Qwen3.5-27B-FP8 "
SGLANG = "python3 -m sglang.launch_server --model-path Qwen/Qwen3.5-27B "
LLAMA = "llama-server -m /x/Qwen3.5-27B-Q4_K_M.gguf "
DOCKER = "docker run {} vllm/vllm-openai:v0.33.0 --model Qwen/Qwen3.5-27B-FP8"


def taken(text: str, profile: str = "h100", **wishes: Any) -> ForeignPlan:
    return plan_from(text, Choice(profile=profile, **wishes), MACHINES[profile])


def row(text: str, name: str, profile: str = "h100") -> Translated:
    (found,) = (one for one in taken(text, profile).items if one.name == name)
    return found


@pytest.mark.parametrize(
    ("text", "name", "fate", "ours"),
    [
        (VLLM + "--max-model-len 32k", "--max-model-len", "taken", "MAX_MODEL_LEN=32000"),
        (VLLM + "--max-model-len 32K", "--max-model-len", "taken", "MAX_MODEL_LEN=32768"),
        (VLLM + "--max-model-len many", "--max-model-len", "not-taken", "MAX_MODEL_LEN"),
        (VLLM + "-tp 2", "-tp", "taken", "TENSOR_PARALLEL_SIZE=2"),
        (VLLM + "-dp 2", "-dp", "taken", "DATA_PARALLEL_SIZE=2"),
        (VLLM + "--distributed-executor-backend ray", "--distributed-executor-backend", "changed", ""),
        (VLLM + "--no-enable-prefix-caching", "--no-enable-prefix-caching", "taken", "ENABLE_PREFIX_CACHING=off"),
        (VLLM + "--attention-backend flash_attn", "--attention-backend", "taken", "ATTENTION_BACKEND=FLASH_ATTN"),
        (VLLM + "--swap-space 4", "--swap-space", "not-taken", ""),
        (VLLM + "--num-speculative-tokens 5", "--num-speculative-tokens", "changed", "DFLASH_NUM_SPEC_TOKENS=5"),
        (VLLM + "--task generate", "--task", "changed", "EXTRA_ARGS=--runner generate"),
        ("VLLM_ATTENTION_BACKEND=FLASHINFER " + VLLM, "VLLM_ATTENTION_BACKEND", "changed", "ATTENTION_BACKEND=FLASHINFER"),
        ("VLLM_FP8_ENABLED=1 " + VLLM, "VLLM_FP8_ENABLED", "not-taken", ""),
        ("VLLM_LOGGING_LEVEL=INFO " + VLLM, "VLLM_LOGGING_LEVEL", "taken", "VLLM_LOGGING_LEVEL=INFO"),
        (VLLM + "--enable-foo", "--enable-foo", "not-taken", ""),
        (VLLM + "--seed 3", "--seed", "taken", "EXTRA_ARGS=--seed 3"),
        (VLLM + "--seed $X", "--seed", "not-taken", ""),
        (VLLM + "--limit-mm-per-prompt.image 0", "--limit-mm-per-prompt.image", "taken", "EXTRA_ARGS=--language-model-only"),
        (VLLM + "--revision main", "--revision", "changed", ""),
        (VLLM + "--quantization fp8", "--quantization", "changed", "QUANTIZATION"),
        ("vllm serve Qwen/Qwen3.5-27B -q fp8", "-q", "taken", "QUANTIZATION=fp8"),
        (VLLM + "--enable-auto-tool-choice", "--enable-auto-tool-choice", "changed", "TOOL_CALL_PARSER"),
        (VLLM + "--trust-remote-code", "--trust-remote-code", "dangerous", "TRUST_REMOTE_CODE=off"),
        (VLLM + "--host 0.0.0.0", "--host", "dangerous", "DFLASH_BIND=127.0.0.1"),
        (VLLM + "--host 192.168.1.5", "--host", "dangerous", ""),
        (VLLM + "--api-key abcdefgh12345678", "--api-key", "dangerous", ""),
        ("HF_TOKEN=abcdefgh12345678 " + VLLM, "HF_TOKEN", "dangerous", ""),
        ("HF_TOKEN=$HF_TOKEN " + VLLM, "HF_TOKEN", "not-taken", ""),
        (DOCKER.format("--privileged"), "--privileged", "dangerous", ""),
        (DOCKER.format("--network=host"), "--network", "dangerous", "DFLASH_BIND"),
        (DOCKER.format("--network llm"), "--network", "not-taken", "DFLASH_BIND"),
        (DOCKER.format("-v /var/run/docker.sock:/s"), "--volume", "dangerous", ""),
        (DOCKER.format("-v $HOME/.cache:/root/.cache"), "--volume", "not-taken", ""),
        (DOCKER.format("-p 9000:8000"), "--publish", "changed", "DFLASH_PORT=9000"),
        (DOCKER.format("-p 0.0.0.0:9000:8000"), "--publish", "dangerous", "DFLASH_PORT=9000"),
        (DOCKER.format("-p 10.0.0.1:9000:8000"), "--publish", "dangerous", "DFLASH_PORT=9000"),
        (DOCKER.format("-p 127.0.0.2:9000:8000"), "--publish", "taken", "DFLASH_PORT=9000 DFLASH_BIND=127.0.0.2"),
        (DOCKER.format("--shm-size 8g"), "--shm-size", "taken", "DFLASH_SHM_SIZE=8g"),
        (DOCKER.format("--name x"), "--name", "not-taken", ""),
        (DOCKER.format(""), "--image", "taken", "DFLASH_BASE_IMAGE"),
        ("docker rm -f $(docker ps -aq)\n" + VLLM, "docker", "dangerous", ""),
        ("curl https://x/y | sh\n" + VLLM, "curl", "not-taken", ""),
        (SGLANG + "--speculative-num-draft-tokens 16", "--speculative-num-draft-tokens", "taken", "DFLASH_NUM_SPEC_TOKENS=15"),
        (SGLANG + "--mamba-scheduler-strategy extra_buffer", "--mamba-scheduler-strategy", "changed",
         "EXTRA_ARGS=--mamba-radix-cache-strategy extra_buffer"),
        (SGLANG + "--disable-radix-cache", "--disable-radix-cache", "taken", "ENABLE_PREFIX_CACHING=off"),
        (LLAMA + "-c 8192 -np 2", "-c", "taken", "MAX_MODEL_LEN=4096"),
        (LLAMA + "-md d.gguf -cd 256 -c 8192", "-c", "taken", "MAX_MODEL_LEN=4096"),
        (LLAMA + "--no-mmproj", "--no-mmproj", "taken", "MMPROJ_FILE="),
        (LLAMA + "-hff Qwen3.5-27B-Q4_K_M.gguf", "-hff", "taken", "MODEL_FILE"),
        (LLAMA + "-hff Qwen3.5-27B-Q8_0.gguf", "-hff", "changed", "MODEL_FILE"),
        (LLAMA + "--no-mmap", "--no-mmap", "changed", "EXTRA_ARGS=--load-mode none"),
        (LLAMA + "-ngl 99", "-ngl", "changed", ""),
        ("LLAMA_ARG_CTX_SIZE=4096 " + LLAMA, "LLAMA_ARG_CTX_SIZE", "taken", "MAX_MODEL_LEN=4096"),
        (LLAMA + """--chat-template-kwargs '{"a": 1}'""", "--chat-template-kwargs", "taken",
         """EXTRA_ARGS=--chat-template-kwargs '{"a": 1}'"""),
        (LLAMA + """--chat-template-kwargs '{"a": 1, "enable_thinking": true}'""", "--chat-template-kwargs.a", "not-taken",
         "EXTRA_ARGS"),
        (VLLM + """--hf-overrides '{"rope_parameters": {"factor": 2}}'""", "--hf-overrides.rope_parameters.factor", "taken",
         "EXTRA_ARGS=--hf-overrides.rope_parameters.factor 2"),
        (VLLM + """--compilation-config '{"splitting_ops": ["a b"]}'""", "--compilation-config.splitting_ops", "taken",
         """EXTRA_ARGS=--compilation-config.splitting_ops '["a b"]'"""),
        (SGLANG + """--json-model-override-args '{"a": "b"}'""", "--json-model-override-args", "taken",
         """EXTRA_ARGS=--json-model-override-args '{"a": "b"}'"""),
        (VLLM + """--hf-overrides '{"a": "\\\\d"}'""", "--hf-overrides.a", "not-taken", "EXTRA_ARGS"),
    ],
)  # fmt: skip
def test_an_item_ends_in_one_way(text: str, name: str, fate: str, ours: str) -> None:
    found = row(text, name, "rtx-3090" if text.startswith("llama") or "LLAMA" in text else "h100")
    assert (found.fate, found.ours) == (fate, ours)
    assert found.why or found.fate == "taken"


def test_what_a_recipe_leaves_out_is_left_out() -> None:
    text = taken("llama-server -hf unsloth/Qwen3.5-27B-GGUF:Q8_0 --no-mmproj -c 8192 -np 2", "rtx-3090")
    assert text.plan is not None
    assert not text.plan.settings.mmproj_file
    why = {row.name: row.why for row in text.items}
    assert why["-hf"] == "the plan has another quantization: Qwen3.5-27B-Q4_K_M.gguf"
    assert why["-c"] == "theirs is for all sequences together"
    no_images = taken(VLLM + "--limit-mm-per-prompt.image 0")
    assert no_images.plan is not None
    assert "--language-model-only" in no_images.plan.settings.extra_args


def test_a_secret_is_neither_shown_nor_taken_over() -> None:
    key = "abcdefgh12345678"
    found = taken(f"export VLLM_API_KEY={key}\n{VLLM} --api-key {key} --hf-token {key}")
    assert key not in repr(found.items)
    assert key not in repr(found.choice)
    assert [one.fate for one in found.items if one.name != "--model"] == ["dangerous"] * 3


def test_another_method_of_drafting_leaves_its_numbers_behind() -> None:
    config = """--speculative-config '{"method": "eagle3", "model": "o/E", "num_speculative_tokens": 3}'"""
    found = taken(VLLM + config)
    assert {one.fate for one in found.items if "speculative" in one.name} == {"not-taken"}
    assert found.plan is not None
    assert found.plan.settings.dflash_num_spec_tokens == 15
    head = taken(VLLM + """--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'""")
    assert head.choice.edited == {"DFLASH_DRAFTER": "mtp", "DFLASH_NUM_SPEC_TOKENS": "3"}


def test_a_drafter_chooses_among_pairs_with_the_same_target() -> None:
    for pair in load_catalog().pairs.values():
        engine = next(
            (one for one in load_catalog().engines.values() if pair.drafter.architecture in one.drafters), None
        )
        if pair.target.repo and pair.drafter.repo and not pair.target.file and engine and engine.engine == "vllm":
            config = f'--speculative-config \'{{"method": "dflash", "model": "{pair.drafter.repo}"}}\''
            assert taken(f"vllm serve {pair.target.repo} {config}").model == pair.name


def test_the_arguments_of_the_plan_stay_before_theirs() -> None:
    found = taken("vllm serve Qwen/Qwen3.5-27B --seed 3 --disable-custom-all-reduce", "rtx-3090-x4")
    assert found.choice.edited["EXTRA_ARGS"] == "--disable-custom-all-reduce --seed 3"


def test_options_count_more_than_the_recipe() -> None:
    found = taken(VLLM + "--max-model-len 4096 --port 9", max_model_len=8192, port=10)
    assert found.plan is not None
    assert (found.plan.settings.max_model_len, found.plan.settings.dflash_port) == (8192, 10)


def test_a_recipe_without_a_known_model_has_its_table_and_no_plan() -> None:
    found = taken("vllm serve other/model --max-model-len 4096")
    assert found.plan is None
    assert "`other/model` is not a known model" in str(found.failure)
    assert [one.fate for one in found.items] == ["not-taken", "taken"]
    assert "does not say which model" in str(taken("MAX_MODEL_LEN=4096").failure)
    drafter = row("vllm serve z-lab/Qwen3.5-27B-DFlash", "--model")
    assert "is a drafter" in drafter.why


def test_the_rules_speak_about_the_plan_of_a_recipe() -> None:
    found = taken(VLLM + "--max-num-batched-tokens 64 --max-num-seqs 32")
    assert found.plan is not None
    assert "budget-too-small" in {finding.id for finding in found.plan.findings}


def test_a_text_with_blanks_is_the_command_itself() -> None:
    assert recipe_text(VLLM) == VLLM


def test_every_argument_and_setting_of_the_rules_exists() -> None:
    names = {one.name for one in Settings.fields()}
    for engine, rules in engine_rules().items():
        assert engine in ENGINES
        for rule in (*rules.arguments.values(), *rules.variables.values(), *container_rules().options.values()):
            assert not rule.setting or rule.setting in names
            assert not rule.ours or rule.ours.partition("=")[0] in names
    assert set(ENGINES) == set(engine_rules())


PUBLISHED = published()


@pytest.mark.parametrize("one", PUBLISHED, ids=str)
def test_of_a_published_recipe_nothing_is_lost(one: Published) -> None:
    rows = one.translated()
    assert Counter((row.kind, row.name) for row in rows) == Counter((item.kind, item.name) for item in one.recipe.items)
    assert all(row.why or row.fate == "taken" for row in rows)
    assert counted(rows) == dict(one.fates)


def test_forty_recipes_of_ten_repositories() -> None:
    assert len(PUBLISHED) >= 40
    assert len({one.source.partition("@")[0] for one in PUBLISHED}) >= 10
    assert min(sum(one.half == half for one in PUBLISHED) for half in (1, 2)) >= 20
    assert set(FATES) >= {fate for one in PUBLISHED for fate in one.fates}


@pytest.mark.parametrize("half", [1, 2])
def test_the_page_has_the_scores(half: int) -> None:
    recipes = [one for one in PUBLISHED if one.half == half]
    found = dict(totals(recipes))
    repositories = {one.source.partition("@")[0] for one in recipes}
    order = ("taken", "changed", "not-taken", "dangerous")
    cells = [half, len(recipes), len(repositories), sum(found.values()), *(found.get(fate, 0) for fate in order), 0]
    page = (ROOT / "docs/reference/recipes.md").read_text(encoding="utf-8")
    assert f"| {' | '.join(map(str, cells))} |" in page
