"""Each engine's own parser accepts a launch line with DFlash, and names what is wrong in a broken one."""

import json

import pytest

from dflash_deploy.serve.verify import shortcomings
from tests.support.parsers import Engine, Rejections
from tests.support.parsers.llamacpp_parser import environment_names, option_values, unknown

DRAFTER = {"method": "dflash", "model": "/models/drafter", "num_speculative_tokens": 15}

DETAILS = {
    "attention_backend": "TRITON_ATTN",
    "kv_cache_dtype": "auto",
    "num_speculative_tokens_per_batch_size": [[1, 4, 15], [5, 8, 3]],
}

VLLM = [
    *["serve", "/models/target", "--served-model-name", "qwen", "--host", "0.0.0.0", "--port", "8000"],
    *["--max-model-len", "32768", "--max-num-seqs", "8", "--max-num-batched-tokens", "16384"],
    *["--gpu-memory-utilization", "0.88", "--tensor-parallel-size", "2", "--no-enable-prefix-caching"],
    *["--attention-backend", "TRITON_ATTN", "--kv-cache-dtype", "fp8_e4m3", "--quantization", "modelopt"],
    *["--limit-mm-per-prompt", '{"image":4,"video":0}', "--reasoning-parser", "qwen3", "--enable-auto-tool-choice"],
    *["--tool-call-parser", "qwen3_coder", "--chat-template", "/models/chat.jinja"],
    *["--speculative-config", json.dumps(DRAFTER | DETAILS)],
]
SGLANG = [
    *["--model-path", "/models/target", "--served-model-name", "qwen", "--host", "0.0.0.0", "--port", "30000"],
    *["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "/models/drafter"],
    *["--speculative-num-draft-tokens", "16", "--speculative-draft-window-size", "64"],
    *["--attention-backend", "trtllm_mha", "--speculative-draft-attention-backend", "fa4"],
    *["--mamba-radix-cache-strategy", "extra_buffer", "--mem-fraction-static", "0.8", "--tp-size", "1"],
    *["--context-length", "32768", "--max-running-requests", "8", "--quantization", "modelopt_fp4"],
    *["--kv-cache-dtype", "fp8_e4m3", "--reasoning-parser", "qwen3", "--tool-call-parser", "qwen3_coder"],
    *["--limit-mm-data-per-request", '{"image":4}', "--enable-metrics", "--api-key", "key"],
]
LLAMACPP = [
    *["-m", "/models/target.gguf", "--mmproj", "/models/mmproj.gguf", "--alias", "qwen", "-c", "32768", "-np", "4"],
    *["--spec-type", "draft-dflash", "-md", "/models/drafter.gguf", "--spec-draft-n-max", "15", "-ngld", "99"],
    *["-ngl", "99", "-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0", "--host", "0.0.0.0", "--port", "9931"],
    *["--api-key-file", "/run/secrets/key", "--metrics", "--jinja"],
]

Wrong = list[tuple[list[str], str]]


def drafter(**changes: object) -> list[str]:
    return ["--speculative-config", json.dumps(DRAFTER | changes)]


WRONG_VLLM: Wrong = [
    (["--no-such-flag", "1"], "--no-such-flag"),
    (["--swap-space", "4"], "--swap-space"),
    (["--limit-mm-per-prompt", "image=4"], "--limit-mm-per-prompt"),
    (["--mamba-cache-mode", "all-of-it"], "--mamba-cache-mode"),
    (["--speculative-config", "{"], "--speculative-config"),
    (["--kv-cache-dtype", "fp9"], "'fp9'"),
    (["--attention-backend", "FLASHY"], "'FLASHY'"),
    (["--quantization", "nvfp5"], "nvfp5"),
    (["--reasoning-parser", "qwen33"], "qwen33"),
    (["--tool-call-parser", "qwen33_coder"], "qwen33_coder"),
    (drafter(modell="/models/drafter"), "modell"),
    (drafter(method="dflush"), "method"),
    (drafter(attention_backend="FLASHY"), "FLASHY"),
    (drafter(kv_cache_dtype="fp9"), "fp9"),
    (drafter(num_speculative_tokens_per_batch_size={"1-4": 15}), "per_batch_size"),
    (drafter(tensor_parallel_size=2), "draft_tensor_parallel_size"),
    (drafter(num_speculative_tokens=None), "num_speculative_tokens"),
]
WRONG_SGLANG: Wrong = [
    (["--no-such-flag", "1"], "--no-such-flag"),
    (["--mamba-scheduler-strategy", "extra_buffer"], "--mamba-scheduler-strategy"),
    (["--speculative-dflash-draft-window-size", "64"], "--speculative-dflash-draft-window-size"),
    (["--attention-backend", "flashy"], "--attention-backend"),
    (["--kv-cache-dtype", "fp9"], "--kv-cache-dtype"),
    (["--quantization", "nvfp5"], "--quantization"),
    (["--mamba-radix-cache-strategy", "all"], "--mamba-radix-cache-strategy"),
    (["--reasoning-parser", "qwen33"], "--reasoning-parser"),
    (["--speculative-draft-attention-backend", "flashy"], "--speculative-draft-attention-backend"),
    (["--speculative-algorithm", "DFLUSH"], "DFLUSH"),
]
WRONG_LLAMACPP: Wrong = [
    (["--no-such-flag", "1"], "--no-such-flag"),
    (["--draft-max", "16"], "--draft-max"),
    (["-cd", "256"], "-cd"),
    (["--dflash-max-slots", "2"], "--dflash-max-slots"),
    (["--spec-type", "dflash"], "--spec-type"),
    (["-ctk", "turbo4"], "-ctk"),
    (["-fa", "perhaps"], "-fa"),
    (["--port", "http"], "--port"),
    # newer than b11434
    (["--moe-cache-mib", "64"], "--moe-cache-mib"),
]


@pytest.mark.parametrize(
    ("engine", "right", "wrong"),
    [
        pytest.param("vllm-0.33", VLLM, WRONG_VLLM),
        pytest.param("sglang-0.5.23", SGLANG, WRONG_SGLANG),
        pytest.param("llamacpp-b11434", LLAMACPP, WRONG_LLAMACPP),
    ],
)
def test_accepts_a_launch_line_and_names_each_mistake(
    engine: Engine, right: list[str], wrong: Wrong, rejections: Rejections
) -> None:
    accepted, *refused = rejections(engine, [right, *([*right, *mistake] for mistake, _ in wrong)])
    assert accepted is None
    for (mistake, named), text in zip(wrong, refused, strict=True):
        assert text is not None, f"{engine} accepts {mistake}"
        assert named in text, f"{engine} says over {mistake}: {text}"


def test_the_two_versions_of_vllm_are_two_versions(rejections: Rejections) -> None:
    newer = [[*VLLM, "--disable-prefix-caching"]]
    (old,) = rejections("vllm-0.32", newer)
    assert old is not None
    assert "--disable-prefix-caching" in old
    assert rejections("vllm-0.33", newer) == [None]


def test_options_are_read_out_of_the_source_with_the_number_of_their_values() -> None:
    source = """
    add_opt(common_arg(
        {"-f", "--flag"},
        {"-nf", "--no-flag"},
        "help",
        [](common_params & params, bool value) {}
    ));
    add_opt(common_arg(
        // a note
        {"-v", "--value"}, hint(),
        string_format("help (default: %d)", 1),
        [](common_params & params, int value) {}
    ).set_env("LLAMA_ARG_VALUE"));
    add_opt(common_arg(
        {"--two"}, "START", "END",
        "help "
        "in two parts",
        [](common_params & params, const std::string & a, const std::string & b) {}
    ));
    """
    options = option_values(source)
    assert options == {"-f": 0, "--flag": 0, "-nf": 0, "--no-flag": 0, "-v": 1, "--value": 1, "--two": 2}
    assert environment_names(source) == {"LLAMA_ARG_VALUE"}
    assert unknown(["--flag", "-v", "-1", "--two", "a", "b", "--no_flag"], options) is None
    assert unknown(["--value", "--flag", "--other"], options) == "error: invalid argument: --other (not in b11434)"


def test_the_installed_vllm_carries_dflash() -> None:
    assert shortcomings({}) == []
