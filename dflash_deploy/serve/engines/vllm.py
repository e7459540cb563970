"""The arguments of `vllm serve`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from dflash_deploy.serve.flags import valued
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Drafter, Nodes, Settings

Version = tuple[int, int]

HAS_A_SETTING = {
    "--api-key": "VLLM_API_KEY: `ps` shows arguments to everybody",
    "--hf-token": "HF_TOKEN: `ps` shows arguments to everybody",
    "--host": "DFLASH_BIND",
    "--port": "DFLASH_PORT",
    "--model": "MODEL_HOST_PATH",
    "--served-model-name": "SERVED_MODEL_NAME",
    "--speculative-config": "DFLASH_DRAFTER and DFLASH_NUM_SPEC_TOKENS",
    "-sc": "DFLASH_DRAFTER and DFLASH_NUM_SPEC_TOKENS",
    "--spec-method": "DFLASH_DRAFTER",
    "--spec-model": "DFLASH_DRAFTER",
    "--spec-tokens": "DFLASH_NUM_SPEC_TOKENS",
    "--max-model-len": "MAX_MODEL_LEN",
    "--max-num-seqs": "MAX_NUM_SEQS",
    "--max-num-batched-tokens": "MAX_NUM_BATCHED_TOKENS",
    "--gpu-memory-utilization": "GPU_MEMORY_UTILIZATION",
    "--kv-cache-dtype": "KV_CACHE_DTYPE",
    "--attention-backend": "ATTENTION_BACKEND",
    "--quantization": "QUANTIZATION",
    "-q": "QUANTIZATION",
    "--enable-prefix-caching": "ENABLE_PREFIX_CACHING",
    "--no-enable-prefix-caching": "ENABLE_PREFIX_CACHING",
    "--enforce-eager": "ENFORCE_EAGER",
    "--tensor-parallel-size": "TENSOR_PARALLEL_SIZE",
    "-tp": "TENSOR_PARALLEL_SIZE",
    "--nnodes": "NODES",
    "-n": "NODES",
    "--node-rank": "NODE_RANK",
    "-r": "NODE_RANK",
    "--master-addr": "MASTER_ADDR",
    "--default-chat-template-kwargs": "ENABLE_THINKING",
    "--allowed-media-domains": "ALLOWED_MEDIA_DOMAINS",
}
"""Arguments that EXTRA_ARGS must not hold, and the setting that each has."""

MIDDLEWARE = "dflash_deploy.serve.gateway.auth.DenyByDefault"
MIDDLEWARE_WITH_CORS = "dflash_deploy.serve.gateway.auth.DenyButPreflights"
"""The lock in front of all routes, without and with origins whose pages may ask."""

NO_DOMAIN = "no-remote-media.invalid"
"""The one allowed domain where none is: vLLM takes an empty list for every domain (0.19 to 0.33,
multimodal/media/connector.py), and a name that ends in .invalid belongs to nobody (RFC 6761)."""

EARLY_BUILDS = re.compile(r"0\.(18\.2|19\.1)rc")
"""Builds between the merge of DFlash and 0.20, such as AEON's 0.19.1rc1.dev110: they have it."""

FIRST_WITH_DFLASH: Version = (0, 20)
"""First stock release with `method: dflash` (vllm-project/vllm#36847)."""

FIRST_WITH_DFLASH_ON_CPU: Version = (0, 26)
"""vllm-project/vllm#44029."""

FIRST_WITH_DRAFTER_BACKEND: Version = (0, 21)
"""`attention_backend` inside --speculative-config; before it the drafter takes what the engine picks."""

FIRST_WITH_DRAFTER_KV_DTYPE: Version = (0, 26)
"""`kv_cache_dtype` inside --speculative-config (vllm-project/vllm#48787); before it the drafter takes the target's."""

FIRST_WITH_SCHEDULE: Version = (0, 24)
"""`num_speculative_tokens_per_batch_size` inside --speculative-config (vllm-project/vllm#32374). Its form, inclusive
ranges as [first, last, draft tokens], the last one carried on, was read in 0.32 and 0.33 (v1/spec_decode/dynamic)."""


def minor_version(version: str) -> Version:
    """`0.33.0`, `0.32.0+cpu` and `0.19.1rc1.dev110` as (major, minor)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise Refused(f"engine version {version!r} is not a version", hint="expected something like 0.33.0")
    return int(found[1]), int(found[2])


def arguments(settings: Settings, *, version: str, cpu: bool) -> list[str]:
    """The arguments after `vllm`, `serve` first.

    No secret is among them: the engine reads VLLM_API_KEY and HF_TOKEN from its environment.
    Raises Refused where that version cannot do what the settings ask.
    """
    return [
        "serve",
        settings.model_path,
        *_endpoint(settings),
        *_media(settings),
        *_limits(settings),
        *_nodes(settings.nodes),
        *_numerics(settings),
        *_prompting(settings),
        *_speculation(settings.drafter, version, cpu=cpu),
        *settings.extra_args,
        # vLLM puts what is named last in front of all others, those of EXTRA_ARGS included
        *("--middleware", _middleware(settings)),
    ]


def _endpoint(settings: Settings) -> Iterator[str]:
    if settings.served_model_names:
        yield "--served-model-name"
        yield from settings.served_model_names
    yield from ("--host", settings.host, "--port", str(settings.port))
    # asked for every 30 seconds, it would be most of the log; since 0.16 (vllm-project/vllm#30011)
    yield from ("--disable-access-log-for-endpoints", "/health")


def _media(settings: Settings) -> Iterator[str]:
    if settings.media_domains != ("all",):
        yield "--allowed-media-domains"
        yield from settings.media_domains or (NO_DOMAIN,)


def _middleware(settings: Settings) -> str:
    cors = any(word.split("=", 1)[0].replace("_", "-") == "--allowed-origins" for word in settings.extra_args)
    return MIDDLEWARE_WITH_CORS if cors else MIDDLEWARE


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
    if settings.prefix_caching is not None:
        yield "--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching"
    if settings.enforce_eager:
        yield "--enforce-eager"


def _prompting(settings: Settings) -> Iterator[str]:
    if settings.images_per_prompt is not None:
        yield from ("--limit-mm-per-prompt", json.dumps({"image": settings.images_per_prompt, "video": 0}))
    yield from valued("--reasoning-parser", settings.reasoning_parser)
    if settings.tool_call_parser is not None:
        yield from ("--enable-auto-tool-choice", "--tool-call-parser", settings.tool_call_parser)
    if settings.thinking is not None:
        yield from ("--default-chat-template-kwargs", json.dumps({"enable_thinking": settings.thinking}))
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
    """Whether that version of vLLM carries `method: dflash`."""
    needed = FIRST_WITH_DFLASH_ON_CPU if cpu else FIRST_WITH_DFLASH
    return minor_version(built) >= needed or bool(EARLY_BUILDS.match(built))


def _speculation(drafter: Drafter | None, built: str, *, cpu: bool) -> Iterator[str]:
    if drafter is None:
        return
    version = minor_version(built)
    if not has_dflash(built, cpu=cpu):
        needed = FIRST_WITH_DFLASH_ON_CPU if cpu else FIRST_WITH_DFLASH
        raise Refused(
            f"vLLM {_dotted(version)} has no DFlash{' on the CPU' if cpu else ''}; it came with {_dotted(needed)}",
            hint="use a newer engine, or set DFLASH_DRAFTER=off",
        )
    # the method is named even though vLLM guesses it: its guess goes by the directory's name
    method = {"method": "mtp"} if drafter.path is None else {"method": "dflash", "model": drafter.path}
    config: dict[str, object] = {**method, "num_speculative_tokens": drafter.draft_tokens}
    for key, value, setting, since in (
        ("attention_backend", drafter.attention_backend, "DFLASH_ATTENTION_BACKEND", FIRST_WITH_DRAFTER_BACKEND),
        ("kv_cache_dtype", drafter.kv_cache_dtype, "DFLASH_KV_CACHE_DTYPE", FIRST_WITH_DRAFTER_KV_DTYPE),
        ("num_speculative_tokens_per_batch_size", drafter.schedule, "DFLASH_SPEC_SCHEDULE", FIRST_WITH_SCHEDULE),
    ):
        if not value:
            continue
        if version < since:
            raise Refused(
                f"vLLM {_dotted(version)} cannot set the drafter's {key}; that came with {_dotted(since)}",
                hint=f"empty {setting}, or use a newer engine",
            )
        config[key] = value
    yield from ("--speculative-config", json.dumps(config))


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)
