"""vLLM: its launch, its differences from other engines, and the arguments of `vllm serve`.

Each argument has the release of vLLM from which on it exists.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from dflash_deploy.serve.api_keys import api_keys
from dflash_deploy.serve.engines.base import (
    DOOR,
    IN_ENV,
    Build,
    Engine,
    Launch,
    Reserved,
    media_domains,
    reserved,
    traces_environment,
    valued,
)
from dflash_deploy.serve.engines.counters import MetricNames
from dflash_deploy.serve.engines.installed import InstalledEngine, installed_vllm, package_directory
from dflash_deploy.serve.extras import install_command
from dflash_deploy.serve.field import VLLM
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import read_secrets
from dflash_deploy.serve.settings import Nodes, Settings
from dflash_deploy.serve.speculation import Speculation

Version = tuple[int, int]

MIDDLEWARE = "dflash_deploy.serve.gateway.auth.DenyByDefault"  # the lock in front of all routes
TEXT_ONLY = "--language-model-only"  # leaves the vision tower out (vLLM 0.33.0 config/multimodal.py)
EARLY_BUILDS = re.compile(r"0\.(18\.2|19\.1)rc")  # builds with DFlash before 0.20, such as AEON's 0.19.1rc1.dev110
FIRST_WITH_DFLASH: Version = (0, 20)  # first stock release with `method: dflash` (vllm-project/vllm#36847)
FIRST_WITH_DFLASH_ON_CPU: Version = (0, 26)  # vllm-project/vllm#44029

# `attention_backend` inside --speculative-config; before, the engine picks the drafter's backend.
FIRST_WITH_DRAFTER_BACKEND: Version = (0, 21)

# `kv_cache_dtype` inside --speculative-config (vllm-project/vllm#48787); before, the drafter has the target's.
FIRST_WITH_DRAFTER_KV_DTYPE: Version = (0, 26)

# Keys inside --speculative-config that came after DFlash itself.
BACKEND, KV_DTYPE, PER_BATCH_SIZE = "attention_backend", "kv_cache_dtype", "num_speculative_tokens_per_batch_size"

# `num_speculative_tokens_per_batch_size` inside --speculative-config (vllm-project/vllm#32374). Its format is that of
# 0.32 and 0.33 (v1/spec_decode/dynamic): inclusive ranges as [first, last, draft tokens]; the last one has no upper
# end.
FIRST_WITH_SCHEDULE: Version = (0, 24)


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
        *_numerics(settings),
        *_prompting(settings),
        *_speculation(settings.speculation, build.version, cpu=build.cpu),
        *settings.extra_args,
        # vLLM puts the last middleware in front of all others, including those of EXTRA_ARGS
        *(("--middleware", MIDDLEWARE) if settings.idle_minutes is None else ()),
    ]


def _endpoint(settings: Settings) -> Iterator[str]:
    if settings.served_model_name:
        yield "--served-model-name"
        yield from settings.served_model_name
    if settings.idle_minutes is None:
        yield from ("--host", settings.dflash_bind, "--port", str(settings.dflash_port))
    # requested every 30 seconds, it would fill the log; since 0.16 (vllm-project/vllm#30011)
    yield from ("--disable-access-log-for-endpoints", "/health")
    yield from valued("--otlp-traces-endpoint", settings.otlp_traces_endpoint)


def _limits(settings: Settings) -> Iterator[str]:
    yield from valued("--max-model-len", settings.max_model_len)
    yield from valued("--max-num-seqs", settings.max_num_seqs)
    yield from valued("--max-num-batched-tokens", settings.max_num_batched_tokens)
    yield from valued("--gpu-memory-utilization", settings.gpu_memory_utilization)
    yield from valued("--tensor-parallel-size", settings.tensor_parallel_size)
    if settings.data_parallel_size > 1:
        # by default vLLM starts an API server, with a gateway of its own, for each copy
        yield from ("--data-parallel-size", str(settings.data_parallel_size), "--api-server-count", "1")


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


# The proposer (mask tokens in, draft tokens out) and the drafter's model: in every vLLM from 0.20.0 on.
MODULES = ("v1/spec_decode/dflash.py", "model_executor/models/qwen3_dflash.py")

ARCHITECTURE = "DFlashDraftModel"  # the architecture in drafters' config.json; the model registry must know it
QUESTION = "dflash_deploy.serve.engines.vllm_question"  # the module that makes vLLM's configuration without weights
PLUGINS = "vllm.general_plugins"  # the group of entry points that each of vLLM's processes loads

# The entry point of `serve.nvfp4`. VLLM_PLUGINS may limit which ones vLLM loads; unset, it loads all.
NVFP4_PLUGIN = "dflash_nvfp4_awq"


class Vllm(Engine):
    """vLLM, stock or in AEON's images."""

    name = "vllm"
    overlaps_since = "0.25"
    uneven = ("mxfp4",)
    title = "vLLM"
    program = ("vllm",)
    template = VLLM
    fragments = ("vllm",)
    metrics = MetricNames(
        "vllm",
        "generation_tokens_total",
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        cached_tokens="prefix_cache_hits_total",
        steps="iteration_tokens_total_count",
        ttft="time_to_first_token_seconds",
        tpot="request_time_per_output_token_seconds",
        queue_time="request_queue_time_seconds",
        preemptions="num_preemptions_total",
    )
    refuses_other_models = True
    reports_weights = True
    # asynchronous scheduling, its default
    steps_in_flight = 2
    speculation_budget = True
    counts_by_position = True
    counts_every_draft = True
    rereads = "echo"
    drafter_chooses_backend = True
    smaller_caches = ("fp8",)
    fp8_kv_from_checkpoint = True
    shares_experts = True
    stale_drafter_prefixes = True
    compiled = "~/.cache/vllm"
    reserved_flags: ClassVar[Mapping[str, Reserved]] = {
        "--api-key": reserved(Settings.vllm_api_key, reason=IN_ENV),
        "--uds": reserved(Settings.dflash_bind, Settings.dflash_port),
        "--config": reserved(reason="a file with arguments that no rule checks"),
        "--hf-token": reserved(Settings.hf_token, reason=IN_ENV),
        "--host": reserved(Settings.dflash_bind),
        "--port": reserved(Settings.dflash_port),
        "--model": reserved(Settings.model_host_path),
        "--served-model-name": reserved(Settings.served_model_name),
        "--speculative-config": reserved(Settings.dflash_drafter, Settings.dflash_num_spec_tokens),
        "-sc": reserved(Settings.dflash_drafter, Settings.dflash_num_spec_tokens),
        "--spec-method": reserved(Settings.dflash_drafter),
        "--spec-model": reserved(Settings.dflash_drafter),
        "--spec-tokens": reserved(Settings.dflash_num_spec_tokens),
        "--max-model-len": reserved(Settings.max_model_len),
        "--max-num-seqs": reserved(Settings.max_num_seqs),
        "--max-num-batched-tokens": reserved(Settings.max_num_batched_tokens),
        "--gpu-memory-utilization": reserved(Settings.gpu_memory_utilization),
        "--kv-cache-dtype": reserved(Settings.kv_cache_dtype),
        "--attention-backend": reserved(Settings.attention_backend),
        "--quantization": reserved(Settings.quantization),
        "-q": reserved(Settings.quantization),
        "--enable-prefix-caching": reserved(Settings.enable_prefix_caching),
        "--no-enable-prefix-caching": reserved(Settings.enable_prefix_caching),
        "--enforce-eager": reserved(Settings.enforce_eager),
        "--tensor-parallel-size": reserved(Settings.tensor_parallel_size),
        "-tp": reserved(Settings.tensor_parallel_size),
        "--data-parallel-size": reserved(Settings.data_parallel_size),
        "-dp": reserved(Settings.data_parallel_size),
        "--api-server-count": reserved(reason="and the gateway counts in one process"),
        "-asc": reserved(reason="and the gateway counts in one process"),
        "--nnodes": reserved(Settings.nodes),
        "-n": reserved(Settings.nodes),
        "--node-rank": reserved(Settings.node_rank),
        "-r": reserved(Settings.node_rank),
        "--master-addr": reserved(Settings.master_addr),
        "--distributed-executor-backend": reserved(reason="and Ray would copy the keys to its workers"),
        "--default-chat-template-kwargs": reserved(Settings.enable_thinking),
        "--allowed-media-domains": reserved(Settings.allowed_media_domains),
        "--allowed-origins": reserved(Settings.allowed_origins),
        "--otlp-traces-endpoint": reserved(Settings.otlp_traces_endpoint),
    }

    def arguments(self, settings: Settings, build: Build) -> list[str]:
        """`serve` first. The engine reads VLLM_API_KEY from its environment."""
        self.check_extra_args(settings)
        return serve_arguments(settings, build)

    def launch(self, settings: Settings, environment: Mapping[str, str]) -> Launch:
        """vLLM's own command line, run by this interpreter."""
        engine = _installed()
        arguments = self.arguments(settings, Build(engine.version, engine.cpu))
        secrets = read_secrets(environment)
        # the gateway checks them too, but only when the model is loaded, minutes later
        api_keys(secrets)
        command, own = engine.command(arguments), engine.environment(environment) | traces_environment(settings, self)
        if settings.idle_minutes is not None:
            # it cannot end and listen: the gateway is a process of its own then
            command, secrets = [sys.executable, "-m", DOOR, self.name, *command], {}
        return Launch(
            title=f"vLLM {engine.version}: vllm",
            command=tuple(command),
            arguments=tuple(arguments),
            environment=own | secrets,
        )

    def question(self, settings: Settings, environment: Mapping[str, str]) -> Launch | None:
        """vLLM's own configuration (`vllm_question`), with the arguments of `launch`."""
        engine = _installed()
        arguments = self.arguments(settings, Build(engine.version, engine.cpu))
        return Launch(
            title=f"vLLM {engine.version}: configuration",
            command=(sys.executable, "-m", QUESTION, *arguments),
            arguments=tuple(arguments),
            # the model's directory is the only place to look for its files
            environment=engine.environment(environment) | {"HF_HUB_OFFLINE": "1"},
        )

    def shortcomings(self, server: Path) -> list[str]:
        """Missing modules, an old version, a model registry without drafters, a missing loader for NVFP4_AWQ."""
        engine, root = installed_vllm(), package_directory("vllm")
        if engine is None or root is None:
            return ["vLLM is not installed"]
        missing = [f"vllm/{module} is missing" for module in MODULES if not (root / module).is_file()]
        if not has_dflash(engine.version, cpu=engine.cpu):
            missing.append(f"vLLM {engine.version} does not support DFlash: it is too old")
        registry = root / "model_executor/models/registry.py"
        if not registry.is_file() or ARCHITECTURE not in registry.read_text(encoding="utf-8"):
            missing.append(f"the model registry does not know {ARCHITECTURE}")
        if NVFP4_PLUGIN not in metadata.entry_points(group=PLUGINS).names:
            missing.append(f"the plugin {NVFP4_PLUGIN} is missing: vLLM would refuse NVFP4_AWQ checkpoints")
        return missing

    def installed(self, settings: Settings | None = None) -> InstalledEngine | None:
        """Stock vLLM, or its build for the CPU."""
        return installed_vllm()

    def schedules_drafts(self, version: str) -> bool:
        """From 0.24 on."""
        return minor_version(version) >= FIRST_WITH_SCHEDULE


def _installed() -> InstalledEngine:
    engine = installed_vllm()
    if engine is None:
        raise Refused("vLLM is not installed beside this Python", hint=f"run `{install_command('vllm')}`")
    return engine
