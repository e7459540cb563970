"""vLLM: its launch, and its differences from other engines."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from dflash_deploy.serve.api_keys import api_keys
from dflash_deploy.serve.engines.base import (
    IN_ENV,
    Build,
    Engine,
    Launch,
    Reserved,
    reserved,
    traces_environment,
)
from dflash_deploy.serve.engines.counters import MetricNames
from dflash_deploy.serve.engines.installed import InstalledEngine, installed_vllm, package_directory
from dflash_deploy.serve.engines.vllm_arguments import FIRST_WITH_SCHEDULE, has_dflash, minor_version, serve_arguments
from dflash_deploy.serve.extras import install_command
from dflash_deploy.serve.field import VLLM
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import read_secrets
from dflash_deploy.serve.settings import Settings

MODULES = ("v1/spec_decode/dflash.py", "model_executor/models/qwen3_dflash.py")
"""The proposer (mask tokens in, draft tokens out) and the drafter's model: in every vLLM from 0.20.0 on."""

ARCHITECTURE = "DFlashDraftModel"
"""The architecture in drafters' config.json; the model registry must know it."""

QUESTION = "dflash_deploy.serve.engines.vllm_question"
"""The module that makes vLLM's configuration without weights."""

RAY_CONFIG = Path(__file__).parent.parent / "ray_config"
"""The directory with the names of variables that vLLM does not copy to Ray's workers."""

PLUGINS = "vllm.general_plugins"
"""The group of entry points that each of vLLM's processes loads."""

NVFP4_PLUGIN = "dflash_nvfp4_awq"
"""The entry point of `serve.nvfp4`. VLLM_PLUGINS may limit which ones vLLM loads; unset, it loads all."""


class Vllm(Engine):
    """vLLM, stock or in AEON's images."""

    name = "vllm"
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
        steps="iteration_tokens_total_count",
        ttft="time_to_first_token_seconds",
        tpot="request_time_per_output_token_seconds",
        queue_time="request_queue_time_seconds",
        preemptions="num_preemptions_total",
    )
    refuses_other_models = True
    reports_weights = True
    in_production_stack = True
    # asynchronous scheduling, its default
    steps_in_flight = 2
    speculation_budget = True
    counts_by_position = True
    counts_every_draft = True
    rereads = "echo"
    drafter_chooses_backend = True
    fp8_kv_from_checkpoint = True
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
        "--nnodes": reserved(Settings.nodes),
        "-n": reserved(Settings.nodes),
        "--node-rank": reserved(Settings.node_rank),
        "-r": reserved(Settings.node_rank),
        "--master-addr": reserved(Settings.master_addr),
        "--distributed-executor-backend": reserved(Settings.distributed_executor),
        "--default-chat-template-kwargs": reserved(Settings.enable_thinking),
        "--allowed-media-domains": reserved(Settings.allowed_media_domains),
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
        return Launch(
            title=f"vLLM {engine.version}: vllm",
            command=tuple(engine.command(arguments)),
            arguments=tuple(arguments),
            environment=engine.environment(environment) | traces_environment(settings, self) | secrets | _ray(settings),
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


def _ray(settings: Settings) -> dict[str, str]:
    """Variables that keep the keys on this machine: vLLM copies VLLM_* and HF_* to Ray's workers (ray/ray_env.py).

    Ray shows the environment of workers in its dashboard and to every driver.
    """
    return {"VLLM_CONFIG_ROOT": str(RAY_CONFIG)} if settings.uses_ray else {}
