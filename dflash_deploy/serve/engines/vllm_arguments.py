"""The arguments of `vllm serve`, and the releases of vLLM from which on it has each of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from dflash_deploy.serve.engines.base import Build, media_domains, valued
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Nodes, Settings
from dflash_deploy.serve.speculation import Speculation

Version = tuple[int, int]

MIDDLEWARE = "dflash_deploy.serve.gateway.auth.DenyByDefault"
MIDDLEWARE_WITH_CORS = "dflash_deploy.serve.gateway.auth.DenyButPreflights"
"""The lock in front of all routes: without CORS, and with origins whose pages may send requests."""

TEXT_ONLY = "--language-model-only"
"""Leaves the vision tower out (vLLM 0.33.0 config/multimodal.py)."""

EARLY_BUILDS = re.compile(r"0\.(18\.2|19\.1)rc")
"""Builds with DFlash before 0.20, such as AEON's 0.19.1rc1.dev110."""

FIRST_WITH_DFLASH: Version = (0, 20)
"""First stock release with `method: dflash` (vllm-project/vllm#36847)."""

FIRST_WITH_DFLASH_ON_CPU: Version = (0, 26)
"""vllm-project/vllm#44029."""

FIRST_WITH_DRAFTER_BACKEND: Version = (0, 21)
"""`attention_backend` inside --speculative-config; before, the engine picks the drafter's backend."""

FIRST_WITH_DRAFTER_KV_DTYPE: Version = (0, 26)
"""`kv_cache_dtype` inside --speculative-config (vllm-project/vllm#48787); before, the drafter has the target's."""

BACKEND, KV_DTYPE, PER_BATCH_SIZE = "attention_backend", "kv_cache_dtype", "num_speculative_tokens_per_batch_size"
"""Keys inside --speculative-config that came after DFlash itself."""

FIRST_WITH_SCHEDULE: Version = (0, 24)
"""`num_speculative_tokens_per_batch_size` inside --speculative-config (vllm-project/vllm#32374). Its format is that of
0.32 and 0.33 (v1/spec_decode/dynamic): inclusive ranges as [first, last, draft tokens]; the last one has no upper
end."""


def minor_version(version: str) -> Version:
    """`0.33.0`, `0.32.0+cpu` and `0.19.1rc1.dev110` as (major, minor)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise Refused(f"engine version `{version}` is not a version", hint="expected a version such as 0.33.0")
    return int(found[1]), int(found[2])


def serve_arguments(settings: Settings, build: Build) -> list[str]:
    """The arguments after `vllm`, `serve` first.

    No secret is among them: the engine reads VLLM_API_KEY and HF_TOKEN from its environment.
    Raises Refused if that version does not support a setting.
    """
    return [
        "serve",
        settings.target,
        *_endpoint(settings),
        *media_domains(settings),
        *_limits(settings),
        *_nodes(settings.group),
        *valued("--distributed-executor-backend", settings.distributed_executor),
        *_numerics(settings),
        *_prompting(settings),
        *_speculation(settings.speculation, build.version, cpu=build.cpu),
        *settings.extra_args,
        # vLLM puts the last middleware in front of all others, including those of EXTRA_ARGS
        *("--middleware", _middleware(settings)),
    ]


def _endpoint(settings: Settings) -> Iterator[str]:
    if settings.served_model_name:
        yield "--served-model-name"
        yield from settings.served_model_name
    yield from ("--host", settings.dflash_bind, "--port", str(settings.dflash_port))
    # requested every 30 seconds, it would fill the log; since 0.16 (vllm-project/vllm#30011)
    yield from ("--disable-access-log-for-endpoints", "/health")
    yield from valued("--otlp-traces-endpoint", settings.otlp_traces_endpoint)


def _middleware(settings: Settings) -> str:
    return MIDDLEWARE_WITH_CORS if settings.allows_origins else MIDDLEWARE


def _limits(settings: Settings) -> Iterator[str]:
    yield from valued("--max-model-len", settings.max_model_len)
    yield from valued("--max-num-seqs", settings.max_num_seqs)
    yield from valued("--max-num-batched-tokens", settings.max_num_batched_tokens)
    yield from valued("--gpu-memory-utilization", settings.gpu_memory_utilization)
    yield from valued("--tensor-parallel-size", settings.tensor_parallel_size)


def _numerics(settings: Settings) -> Iterator[str]:
    yield from valued("--kv-cache-dtype", settings.kv_cache_dtype)
    yield from valued("--attention-backend", settings.attention_backend)
    yield from valued("--quantization", settings.quantization)
    if settings.enable_prefix_caching is not None:
        yield "--enable-prefix-caching" if settings.enable_prefix_caching else "--no-enable-prefix-caching"
    if settings.enforce_eager:
        yield "--enforce-eager"


def _prompting(settings: Settings) -> Iterator[str]:
    if settings.limit_images_per_prompt is not None:
        yield from ("--limit-mm-per-prompt", json.dumps({"image": settings.limit_images_per_prompt, "video": 0}))
    yield from valued("--reasoning-parser", settings.reasoning_parser)
    if settings.tool_call_parser:
        yield from ("--enable-auto-tool-choice", "--tool-call-parser", settings.tool_call_parser)
    if settings.enable_thinking is not None:
        yield from ("--default-chat-template-kwargs", json.dumps({"enable_thinking": settings.enable_thinking}))
    if settings.trust_remote_code:
        yield "--trust-remote-code"


def _nodes(nodes: Nodes | None) -> Iterator[str]:
    if nodes is None:
        return
    yield from ("--nnodes", str(nodes.count), "--node-rank", str(nodes.rank))
    yield from valued("--master-addr", nodes.master)
    if nodes.rank > 0:
        yield "--headless"


def has_dflash(built: str, *, cpu: bool) -> bool:
    """Whether that version of vLLM supports `method: dflash`."""
    needed = FIRST_WITH_DFLASH_ON_CPU if cpu else FIRST_WITH_DFLASH
    return minor_version(built) >= needed or bool(EARLY_BUILDS.match(built))


def _speculation(speculation: Speculation | None, built: str, *, cpu: bool) -> Iterator[str]:
    if speculation is None:
        return
    version = minor_version(built)
    if not has_dflash(built, cpu=cpu):
        needed = FIRST_WITH_DFLASH_ON_CPU if cpu else FIRST_WITH_DFLASH
        raise Refused(
            f"vLLM {_dotted(version)} has no DFlash{' on the CPU' if cpu else ''}: it needs {_dotted(needed)} or newer",
            hint=f"use a newer engine, or set {Settings.dflash_drafter}=off",
        )
    # vLLM would guess the method from the directory's name
    method = {"method": "mtp"} if speculation.path is None else {"method": "dflash", "model": speculation.path}
    config: dict[str, object] = {**method, "num_speculative_tokens": speculation.draft_tokens}
    for key, value, setting, since in (
        (BACKEND, speculation.attention_backend, Settings.dflash_attention_backend, FIRST_WITH_DRAFTER_BACKEND),
        (KV_DTYPE, speculation.kv_cache_dtype, Settings.dflash_kv_cache_dtype, FIRST_WITH_DRAFTER_KV_DTYPE),
        (PER_BATCH_SIZE, speculation.schedule, Settings.dflash_spec_schedule, FIRST_WITH_SCHEDULE),
    ):
        if not value:
            continue
        if version < since:
            raise Refused(
                f"vLLM {_dotted(version)} cannot set the drafter's {key}: it needs {_dotted(since)} or newer",
                hint=f"empty {setting}, or use a newer engine",
            )
        config[key] = value
    yield from ("--speculative-config", json.dumps(config))


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)
