"""Settings become the argument list of `vllm serve`. Pure: the same settings and version give the same list."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Drafter, Settings

Version = tuple[int, int]

FIRST_WITH_DFLASH: Version = (0, 20)
"""First stock release with `method: dflash` (vllm-project/vllm#36847)."""

FIRST_WITH_DFLASH_ON_CPU: Version = (0, 26)
"""vllm-project/vllm#44029."""

FIRST_WITH_DRAFTER_BACKEND: Version = (0, 21)
"""`attention_backend` inside --speculative-config; before it the drafter takes what the engine picks."""


def minor_version(version: str) -> Version:
    """`0.33.0`, `0.32.0+cpu` and `0.19.1rc1.dev110` as (major, minor)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise Refused(f"engine version {version!r} is not a version", hint="expected something like 0.33.0")
    return int(found[1]), int(found[2])


def engine_arguments(settings: Settings, *, version: str, cpu: bool = False) -> list[str]:
    """The arguments after `vllm`, `serve` first.

    No secret is among them: the engine reads VLLM_API_KEY and HF_TOKEN from its environment.
    Raises Refused where that version cannot do what the settings ask.
    """
    return [
        "serve",
        settings.model_path,
        *_endpoint(settings),
        *_limits(settings),
        *_numerics(settings),
        *_prompting(settings),
        *_speculation(settings.drafter, minor_version(version), cpu=cpu),
        *settings.extra_args,
    ]


def _endpoint(settings: Settings) -> Iterator[str]:
    if settings.served_model_names:
        yield "--served-model-name"
        yield from settings.served_model_names
    yield from ("--host", settings.host, "--port", str(settings.port))


def _limits(settings: Settings) -> Iterator[str]:
    yield from _valued("--max-model-len", settings.max_model_len)
    yield from _valued("--max-num-seqs", settings.max_num_seqs)
    yield from _valued("--max-num-batched-tokens", settings.max_num_batched_tokens)
    yield from _valued("--gpu-memory-utilization", settings.gpu_memory_utilization)
    yield from _valued("--tensor-parallel-size", settings.tensor_parallel_size)


def _numerics(settings: Settings) -> Iterator[str]:
    yield from _valued("--kv-cache-dtype", settings.kv_cache_dtype)
    yield from _valued("--attention-backend", settings.attention_backend)
    yield from _valued("--quantization", settings.quantization)
    if settings.prefix_caching is not None:
        yield "--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching"
    if settings.enforce_eager:
        yield "--enforce-eager"


def _prompting(settings: Settings) -> Iterator[str]:
    if settings.images_per_prompt is not None:
        yield from ("--limit-mm-per-prompt", json.dumps({"image": settings.images_per_prompt, "video": 0}))
    yield from _valued("--reasoning-parser", settings.reasoning_parser)
    if settings.tool_call_parser is not None:
        yield from ("--enable-auto-tool-choice", "--tool-call-parser", settings.tool_call_parser)
    if settings.trust_remote_code:
        yield "--trust-remote-code"


def _speculation(drafter: Drafter | None, version: Version, *, cpu: bool) -> Iterator[str]:
    if drafter is None:
        return
    needed = FIRST_WITH_DFLASH_ON_CPU if cpu else FIRST_WITH_DFLASH
    if version < needed:
        raise Refused(
            f"vLLM {_dotted(version)} has no DFlash{' on the CPU' if cpu else ''}; it came with {_dotted(needed)}",
            hint="use a newer engine, or set DFLASH_DRAFTER=off",
        )
    # the method is named even though vLLM guesses it: its guess goes by the directory's name
    config: dict[str, object] = {
        "method": "dflash",
        "model": drafter.path,
        "num_speculative_tokens": drafter.draft_tokens,
    }
    if drafter.attention_backend is not None:
        if version < FIRST_WITH_DRAFTER_BACKEND:
            raise Refused(
                f"vLLM {_dotted(version)} cannot set the drafter's attention backend; "
                f"that came with {_dotted(FIRST_WITH_DRAFTER_BACKEND)}",
                hint="empty DFLASH_ATTENTION_BACKEND, or use a newer engine",
            )
        config["attention_backend"] = drafter.attention_backend
    yield from ("--speculative-config", json.dumps(config))


def _valued(flag: str, value: object | None) -> Iterator[str]:
    if value is not None:
        yield flag
        yield str(value)


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)
