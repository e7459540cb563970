"""The folders by which a failed part of an engine is recognised are folders of its released source."""

import pytest

from dflash_deploy.catalog.load import load_catalog
from tests.support.parsers.fetch import fetched

PARTS = [failure for failure in load_catalog().failures if failure.part]

RELEASES = {"vllm": "vllm-0.33.0", "sglang": "sglang-0.5.23"}

# A file of each part in each engine.
FILES = {
    "structured-output-failed": ("vllm/v1/structured_output/utils.py", "sglang/srt/constrained/xgrammar_backend.py"),
    "speculation-code-failed": ("vllm/v1/spec_decode/dflash.py", "sglang/srt/speculative/base_spec_worker.py"),
    "drafter-model-code-failed": (
        "vllm/model_executor/models/qwen3_dspark.py",
        "sglang/srt/models/deepseek_nextn.py",
    ),
    "cache-transfer-code-failed": (
        "vllm/distributed/kv_transfer/kv_connector/v1/offloading_connector.py",
        "sglang/srt/disaggregation/prefill.py",
    ),
    "adapter-code-failed": ("vllm/v1/worker/lora_model_runner_mixin.py", "sglang/srt/lora/mem_pool.py"),
    "image-code-failed": ("vllm/multimodal/processing/context.py", "sglang/srt/layers/attention/vision.py"),
    "settings-code-failed": ("vllm/engine/arg_utils.py", "sglang/srt/arg_groups/speculative_hook.py"),
    "model-code-failed": ("vllm/model_executor/models/qwen3_vl.py", "sglang/srt/models/qwen3_vl.py"),
    "compilation-code-failed": ("vllm/compilation/cuda_graph.py", "sglang/srt/compilation/backend.py"),
    "recurrent-code-failed": (
        "vllm/v1/attention/backends/gdn_attn.py",
        "sglang/srt/layers/attention/hybrid_linear_attn_backend.py",
    ),
    "attention-code-failed": (
        "vllm/v1/attention/backends/flash_attn.py",
        "sglang/srt/layers/attention/flashattention_backend.py",
    ),
    "cache-quantization-code-failed": (
        "vllm/model_executor/layers/quantization/kv_cache.py",
        "sglang/srt/layers/quantization/kv_cache.py",
    ),
    "quantization-code-failed": (
        "vllm/model_executor/layers/quantization/fp8.py",
        "sglang/srt/layers/quantization/fp8.py",
    ),
    "experts-code-failed": ("vllm/model_executor/layers/fused_moe/layer.py", "sglang/srt/layers/moe/topk.py"),
    "loading-code-failed": ("vllm/model_executor/parameter.py", "sglang/srt/model_loader/weight_utils.py"),
    "parser-code-failed": ("vllm/tool_parsers/xlam_tool_parser.py", "sglang/srt/parser/reasoning_parser.py"),
    "scheduler-code-failed": ("vllm/v1/core/sched/scheduler.py", "sglang/srt/managers/schedule_batch.py"),
    "server-code-failed": (
        "vllm/entrypoints/openai/chat_completion/serving.py",
        "sglang/srt/entrypoints/openai/serving_chat.py",
    ),
}


def first(place: str) -> str:
    """The part that a frame in a file names."""
    frame = f'File "/usr/lib/{place}", line 3, in forward'
    return next((part.id for part in PARTS if part.compiled.search(frame)), "")


@pytest.mark.parametrize("number", range(len(RELEASES)), ids=RELEASES)
def test_each_part_has_a_folder_of_the_source(number: int) -> None:
    release = fetched(list(RELEASES.values())[number])
    for part in PARTS:
        place = FILES[part.id][number]
        assert (release / place).is_file(), place
        assert first(place) == part.id
