"""The arguments of `llama-server`: upstream's from b10068 on, and those of the buun fork.

They differ where DFlash does: upstream calls the method `draft-dflash` and its limit `--spec-draft-n-max`, the fork
`dflash` and `--draft-max`; the fork keeps a short context for the drafter and small batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Drafter, Settings

HAS_A_SETTING = {
    "--api-key": "VLLM_API_KEY: `ps` shows arguments to everybody",
    "--api-key-file": "VLLM_API_KEY",
    "--host": "DFLASH_BIND",
    "--port": "DFLASH_PORT",
    "--model": "MODEL_HOST_PATH and MODEL_FILE",
    "-m": "MODEL_HOST_PATH and MODEL_FILE",
    "--mmproj": "MMPROJ_FILE",
    "-mm": "MMPROJ_FILE",
    "--alias": "SERVED_MODEL_NAME",
    "-a": "SERVED_MODEL_NAME",
    "--model-draft": "DFLASH_DRAFTER",
    "--spec-draft-model": "DFLASH_DRAFTER",
    "-md": "DFLASH_DRAFTER",
    "--spec-type": "DFLASH_DRAFTER",
    "--spec-draft-n-max": "DFLASH_NUM_SPEC_TOKENS",
    "--draft-max": "DFLASH_NUM_SPEC_TOKENS",
    "--ctx-size": "MAX_MODEL_LEN and MAX_NUM_SEQS",
    "-c": "MAX_MODEL_LEN and MAX_NUM_SEQS",
    "--parallel": "MAX_NUM_SEQS",
    "-np": "MAX_NUM_SEQS",
    "--batch-size": "MAX_NUM_BATCHED_TOKENS",
    "-b": "MAX_NUM_BATCHED_TOKENS",
    "--cache-type-k": "KV_CACHE_DTYPE",
    "-ctk": "KV_CACHE_DTYPE",
    "--cache-type-v": "KV_CACHE_DTYPE",
    "-ctv": "KV_CACHE_DTYPE",
}
"""Arguments that EXTRA_ARGS must not hold, and the setting that each has."""

FORK_DRAFT_CONTEXT = 256
FORK_MICRO_BATCH = 64
"""What the fork's card says beside `-b 256`; its own defaults are the same (arg.cpp of 1c4788192)."""


def arguments(settings: Settings, *, fork: bool) -> list[str]:
    """The arguments of the server; `fork` is spiritbuun/buun-llama-cpp.

    Raises Refused where llama.cpp cannot do what the settings ask.
    """
    if settings.nodes is not None:
        raise Refused("llama.cpp serves from one machine", hint="empty NODES, or choose another engine")
    return [
        "--model",
        settings.model_path,
        *_endpoint(settings, fork=fork),
        *_limits(settings, fork=fork),
        *_numerics(settings),
        *_prompting(settings),
        *_speculation(settings.drafter, fork=fork),
        *settings.extra_args,
    ]


def _endpoint(settings: Settings, *, fork: bool) -> Iterator[str]:
    if settings.served_model_names:
        yield from ("--alias", ",".join(settings.served_model_names))
    yield from ("--host", settings.host, "--port", str(settings.port), "--metrics")
    if not fork:
        # its web page is served without the key; the fork's card does not name the option
        yield "--no-webui"


def _limits(settings: Settings, *, fork: bool) -> Iterator[str]:
    slots = settings.max_num_seqs or 1
    yield from ("--parallel", str(slots))
    if settings.max_model_len is not None:
        # the context is shared out among the slots
        yield from ("--ctx-size", str(settings.max_model_len * slots))
    if settings.max_num_batched_tokens is not None:
        yield from ("--batch-size", str(settings.max_num_batched_tokens))
    if fork and settings.drafter is not None:
        yield from ("--ubatch-size", str(FORK_MICRO_BATCH))
    # all layers on the GPU: a model that does not fit is refused by the plan, not slowed down in silence
    yield from ("--n-gpu-layers", "99")


def _numerics(settings: Settings) -> Iterator[str]:
    yield from ("--flash-attn", "on")
    if settings.kv_cache_dtype not in {None, "auto"}:
        yield from ("--cache-type-k", str(settings.kv_cache_dtype), "--cache-type-v", str(settings.kv_cache_dtype))


def _prompting(settings: Settings) -> Iterator[str]:
    yield "--jinja"
    if settings.projector_path is not None:
        yield from ("--mmproj", settings.projector_path)
    if settings.thinking is not None:
        yield from ("--chat-template-kwargs", json.dumps({"enable_thinking": settings.thinking}))


def _speculation(drafter: Drafter | None, *, fork: bool) -> Iterator[str]:
    if drafter is None:
        return
    weights = drafter.weights("llama.cpp")
    if fork:
        yield from ("--model-draft", weights, "--spec-type", "dflash", "--draft-max", str(drafter.draft_tokens))
        yield from ("--n-gpu-layers-draft", "99", "--ctx-size-draft", str(FORK_DRAFT_CONTEXT))
        return
    yield from ("--spec-draft-model", weights, "--spec-type", "draft-dflash")
    yield from ("--spec-draft-n-max", str(drafter.draft_tokens), "--spec-draft-ngl", "99")
