"""The arguments of `python3 -m sglang.launch_server`, by the names of 0.5.23."""

from __future__ import annotations

import json
from collections.abc import Iterator

from dflash_deploy.serve.flags import valued
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Drafter, Nodes, Settings

HAS_A_SETTING = {
    "--api-key": "VLLM_API_KEY: `ps` shows arguments to everybody",
    "--host": "DFLASH_BIND",
    "--port": "DFLASH_PORT",
    "--model-path": "MODEL_HOST_PATH",
    "--model": "MODEL_HOST_PATH",
    "--served-model-name": "SERVED_MODEL_NAME",
    "--speculative-algorithm": "DFLASH_DRAFTER",
    "--speculative-draft-model-path": "DFLASH_DRAFTER",
    "--speculative-num-draft-tokens": "DFLASH_NUM_SPEC_TOKENS",
    "--speculative-draft-attention-backend": "DFLASH_ATTENTION_BACKEND",
    "--speculative-draft-window-size": "DFLASH_DRAFT_WINDOW",
    "--context-length": "MAX_MODEL_LEN",
    "--max-running-requests": "MAX_NUM_SEQS",
    "--chunked-prefill-size": "MAX_NUM_BATCHED_TOKENS",
    "--mem-fraction-static": "GPU_MEMORY_UTILIZATION",
    "--kv-cache-dtype": "KV_CACHE_DTYPE",
    "--attention-backend": "ATTENTION_BACKEND",
    "--quantization": "QUANTIZATION",
    "--tp-size": "TENSOR_PARALLEL_SIZE",
    "--tensor-parallel-size": "TENSOR_PARALLEL_SIZE",
    "--tp": "TENSOR_PARALLEL_SIZE",
    "--nnodes": "NODES",
    "--node-rank": "NODE_RANK",
    "--dist-init-addr": "MASTER_ADDR",
    "--default-chat-template-kwargs": "ENABLE_THINKING",
}
"""Arguments that EXTRA_ARGS must not hold, and the setting that each has."""

MEETING_PORT = 29501
"""Where several machines find each other; the port that vLLM uses too."""


def arguments(settings: Settings) -> list[str]:
    """The arguments of the server. Raises Refused where SGLang cannot do what the settings ask."""
    return [
        "--model-path",
        settings.model_path,
        *_endpoint(settings),
        *_limits(settings),
        *_nodes(settings.nodes),
        *_numerics(settings),
        *_prompting(settings),
        *_speculation(settings.drafter),
        *settings.extra_args,
    ]


def _endpoint(settings: Settings) -> Iterator[str]:
    if len(settings.served_model_names) > 1:
        raise Refused("SERVED_MODEL_NAME holds several names, and SGLang takes one", hint="leave one of them")
    if settings.served_model_names:
        yield from ("--served-model-name", settings.served_model_names[0])
    yield from ("--host", settings.host, "--port", str(settings.port), "--enable-metrics")


def _limits(settings: Settings) -> Iterator[str]:
    yield from valued("--context-length", settings.max_model_len)
    yield from valued("--max-running-requests", settings.max_num_seqs)
    yield from valued("--chunked-prefill-size", settings.max_num_batched_tokens)
    yield from valued("--mem-fraction-static", settings.gpu_memory_utilization)
    yield from valued("--tp-size", settings.tensor_parallel_size)


def _nodes(nodes: Nodes | None) -> Iterator[str]:
    if nodes is not None:
        yield from ("--nnodes", str(nodes.count), "--node-rank", str(nodes.rank))
        yield from valued("--dist-init-addr", nodes.master and f"{nodes.master}:{MEETING_PORT}")


def _numerics(settings: Settings) -> Iterator[str]:
    yield from valued("--kv-cache-dtype", settings.kv_cache_dtype)
    yield from valued("--attention-backend", settings.attention_backend)
    yield from valued("--quantization", settings.quantization)
    if settings.prefix_caching is False:
        yield "--disable-radix-cache"
    if settings.enforce_eager:
        yield "--disable-cuda-graph"


def _prompting(settings: Settings) -> Iterator[str]:
    if settings.images_per_prompt is not None:
        yield from ("--limit-mm-data-per-request", json.dumps({"image": settings.images_per_prompt, "video": 0}))
    yield from valued("--reasoning-parser", settings.reasoning_parser)
    yield from valued("--tool-call-parser", settings.tool_call_parser)
    if settings.thinking is not None:
        yield from ("--default-chat-template-kwargs", json.dumps({"enable_thinking": settings.thinking}))
    if settings.trust_remote_code:
        yield "--trust-remote-code"


def _speculation(drafter: Drafter | None) -> Iterator[str]:
    if drafter is None:
        return
    yield from ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", drafter.weights("SGLang"))
    # SGLang counts the whole block, the anchor included; vLLM and DFLASH_NUM_SPEC_TOKENS leave it out
    yield from ("--speculative-num-draft-tokens", str(drafter.draft_tokens + 1))
    yield from valued("--speculative-draft-attention-backend", drafter.attention_backend)
    yield from valued("--speculative-draft-kv-cache-dtype", drafter.kv_cache_dtype)
    yield from valued("--speculative-draft-window-size", drafter.window)
