"""SGLang: the arguments of `python3 -m sglang.launch_server` (0.5.23), and its differences from other engines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
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
    drafter_weights,
    media_domains,
    reserved,
    traces_environment,
    valued,
)
from dflash_deploy.serve.engines.counters import MetricNames, MetricSample, SpecCounters
from dflash_deploy.serve.engines.installed import package_directory
from dflash_deploy.serve.field import SGLANG
from dflash_deploy.serve.gateway import IDLE_SECONDS
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import read_secrets
from dflash_deploy.serve.settings import Nodes, Settings

MEETING_PORT = 29501  # the port of rank 0 for several machines; vLLM uses the same


MODULE = "srt/models/dflash.py"  # the module of `--speculative-algorithm DFLASH`, from 0.5.11 on

# Fields of SGLang's ServerArgs (0.5.23) and the values with which its one listener is the HTTP server of its first
# process. With others it also listens where the gateway is not: in further processes, over gRPC, or for other
# workers.
ONE_DOOR: Mapping[str, object] = {
    "tokenizer_worker_num": 1,
    "grpc_port": None,
    "grpc_mode": False,
    "smg_grpc_mode": False,
    "encoder_only": False,
    "use_ray": False,
    "disaggregation_mode": "null",
}


class Sglang(Engine):
    """SGLang from 0.5.11 on."""

    name = "sglang"
    overlaps_since = "0.5.13"
    title = "SGLang"
    program = ("python3", "-m", "sglang.launch_server")
    template = SGLANG
    fragments = ("sglang",)
    metrics = MetricNames(
        "sglang",
        "generation_tokens_total",
        "num_running_reqs",
        "num_queue_reqs",
        "token_usage",
        cached_tokens="cached_tokens_total",
        steps="realtime_tokens_total",
        computed="realtime_tokens_total",
        drafts="spec_verify_calls_total",
        draft_tokens="",
        step_tokens="spec_num_draft_tokens",
        answers="num_requests_total",
        accepted_tokens="",
        accepted_by_position="",
        ttft="time_to_first_token_seconds",
        tpot="request_time_per_output_token_seconds",
        queue_time="queue_time_seconds",
        preemptions="num_retracted_requests_total",
    )
    rereads = "echo"  # `return_token_ids` of chats: in 0.5.23, not in each earlier release
    utilization_covers_activations = False
    state_ratio = 0.9  # the default of --mamba-full-memory-ratio, SGLang 0.5.23
    drafter_limits_context = True
    # pangoleen/qwen3.8-27b-dgx-spark-dflash2 serve.sh; hasso5703/dgx-spark-qwen38 v1.9.0
    drafter_formats: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "nvfp4-modelopt": ("--speculative-draft-model-quantization", "modelopt_fp4")
    }
    reserved_flags: ClassVar[Mapping[str, Reserved]] = {
        "--api-key": reserved(Settings.vllm_api_key, reason=IN_ENV),
        "--admin-api-key": reserved(Settings.vllm_api_key, reason=IN_ENV),
        "--allowed-media-domains": reserved(Settings.allowed_media_domains),
        "--enable-trace": reserved(Settings.otlp_traces_endpoint),
        "--otlp-traces-endpoint": reserved(Settings.otlp_traces_endpoint),
        "--host": reserved(Settings.dflash_bind),
        "--port": reserved(Settings.dflash_port),
        "--model-path": reserved(Settings.model_host_path),
        "--model": reserved(Settings.model_host_path),
        "--served-model-name": reserved(Settings.served_model_name),
        "--speculative-algorithm": reserved(Settings.dflash_drafter),
        "--speculative-draft-model-path": reserved(Settings.dflash_drafter),
        "--speculative-num-draft-tokens": reserved(Settings.dflash_num_spec_tokens),
        "--speculative-draft-attention-backend": reserved(Settings.dflash_attention_backend),
        "--speculative-draft-kv-cache-dtype": reserved(Settings.dflash_kv_cache_dtype),
        "--context-length": reserved(Settings.max_model_len),
        "--max-running-requests": reserved(Settings.max_num_seqs),
        "--chunked-prefill-size": reserved(Settings.max_num_batched_tokens),
        "--mem-fraction-static": reserved(Settings.gpu_memory_utilization),
        "--kv-cache-dtype": reserved(Settings.kv_cache_dtype),
        "--attention-backend": reserved(Settings.attention_backend),
        "--quantization": reserved(Settings.quantization),
        "--tp-size": reserved(Settings.tensor_parallel_size),
        "--tensor-parallel-size": reserved(Settings.tensor_parallel_size),
        "--tp": reserved(Settings.tensor_parallel_size),
        "--dp-size": reserved(Settings.data_parallel_size),
        "--data-parallel-size": reserved(Settings.data_parallel_size),
        "--nnodes": reserved(Settings.nodes),
        "--node-rank": reserved(Settings.node_rank),
        "--dist-init-addr": reserved(Settings.master_addr),
        "--default-chat-template-kwargs": reserved(Settings.enable_thinking),
        **{
            f"--{name.replace('_', '-')}": reserved(reason="and SGLang would listen without the gateway")
            for name in ONE_DOOR
        },
    }

    def arguments(self, settings: Settings, build: Build) -> list[str]:
        """The arguments of the server; the key is added inside its process (`sglang_server`).

        Raises Refused if EXTRA_ARGS opens a listener that the gateway is not in front of.
        """
        self.check_extra_args(settings)
        return _arguments(settings)

    def launch(self, settings: Settings, environment: Mapping[str, str]) -> Launch:
        """`sglang_server` runs SGLang with the key and the gateway inside its process, invisible to `ps`."""
        try:
            version = metadata.version("sglang")
        except metadata.PackageNotFoundError:
            raise Refused(
                "SGLang is not installed beside this Python", hint="build the image from images/sglang"
            ) from None
        arguments = self.arguments(settings, Build(version))
        secrets = read_secrets(environment)
        # the gateway checks them too, but only after the imports, half a minute later
        api_keys(secrets)
        return Launch(
            title=f"SGLang {version}: sglang.launch_server",
            command=(sys.executable, "-m", "dflash_deploy.serve.engines.sglang_server", *arguments),
            arguments=tuple(arguments),
            environment={
                "SGLANG_TIMEOUT_KEEP_ALIVE": str(int(IDLE_SECONDS)),
                **environment,
                **traces_environment(settings, self),
                **secrets,
            },
        )

    def shortcomings(self, server: Path) -> list[str]:
        """A missing package, or one older than DFlash."""
        root = package_directory("sglang")
        if root is None:
            return ["SGLang is not installed"]
        return [] if (root / MODULE).is_file() else [f"sglang/{MODULE} is missing: it came with 0.5.11"]

    def drafts(self, samples: Iterable[MetricSample]) -> SpecCounters:
        """Verification steps, and the tokens that they yielded: all but the first of each answer, which prefill yields.

        The gauge of the block, which includes its anchor, is 0 until the engine has decoded for 40 steps
        (`--decode-log-interval`).
        """
        known = list(samples)
        steps = self.metrics.total(known, self.metrics.drafts)
        if not steps:
            return SpecCounters()
        block = int(max(self.metrics.each(known, self.metrics.step_tokens), default=0))
        per_step = max(block - 1, 0)
        first = self.metrics.total(known, self.metrics.answers)
        accepted = self.metrics.total(known, self.metrics.generated_tokens) - steps - first
        return SpecCounters(steps, steps * per_step, max(accepted, 0), per_step=per_step)


def _arguments(settings: Settings) -> list[str]:
    return [
        "--model-path",
        settings.target,
        *_endpoint(settings),
        *media_domains(settings),
        *_limits(settings),
        *_nodes(settings.group),
        *_numerics(settings),
        *_prompting(settings),
        *_speculation(settings),
        *settings.extra_args,
    ]


def _endpoint(settings: Settings) -> Iterator[str]:
    if len(settings.served_model_name) > 1:
        raise Refused(
            f"{Settings.served_model_name} holds several names, and SGLang accepts only one", hint="remove the others"
        )
    if settings.served_model_name:
        yield from ("--served-model-name", settings.served_model_name[0])
    yield from ("--host", settings.dflash_bind, "--port", str(settings.dflash_port), "--enable-metrics")
    if settings.otlp_traces_endpoint is not None:
        yield from ("--enable-trace", "--otlp-traces-endpoint", str(settings.otlp_traces_endpoint))


def _limits(settings: Settings) -> Iterator[str]:
    yield from valued("--context-length", settings.max_model_len)
    yield from valued("--max-running-requests", settings.max_num_seqs)
    yield from valued("--chunked-prefill-size", settings.max_num_batched_tokens)
    yield from valued("--mem-fraction-static", settings.gpu_memory_utilization)
    yield from valued("--tp-size", settings.tensor_parallel_size)
    if settings.data_parallel_size > 1:
        yield from ("--dp-size", str(settings.data_parallel_size))


def _nodes(nodes: Nodes | None) -> Iterator[str]:
    if nodes is not None:
        yield from ("--nnodes", str(nodes.count), "--node-rank", str(nodes.rank))
        yield from valued("--dist-init-addr", nodes.master and f"{nodes.master}:{MEETING_PORT}")


def _numerics(settings: Settings) -> Iterator[str]:
    yield from valued("--kv-cache-dtype", settings.kv_cache_dtype)
    yield from valued("--attention-backend", settings.attention_backend)
    yield from valued("--quantization", settings.quantization)
    if settings.enable_prefix_caching is False:
        yield "--disable-radix-cache"
    if settings.enforce_eager:
        yield "--disable-cuda-graph"


def _prompting(settings: Settings) -> Iterator[str]:
    if settings.limit_images_per_prompt is not None:
        yield from ("--limit-mm-data-per-request", json.dumps({"image": settings.limit_images_per_prompt, "video": 0}))
    yield from valued("--reasoning-parser", settings.reasoning_parser)
    yield from valued("--tool-call-parser", settings.tool_call_parser)
    if settings.enable_thinking is not None:
        yield from ("--default-chat-template-kwargs", json.dumps({"enable_thinking": settings.enable_thinking}))
    if settings.trust_remote_code:
        yield "--trust-remote-code"


def _speculation(settings: Settings) -> Iterator[str]:
    speculation = settings.speculation
    if speculation is None:
        return
    weights = drafter_weights(speculation, "SGLang")
    yield from ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", weights)
    if settings.quantization:
        # else the drafter is read as if it had the target's quantization, and no draft is accepted
        # (0.5.23, arg_groups/serving_hook.py)
        yield from ("--speculative-draft-model-quantization", "unquant")
    # SGLang counts the anchor of the block as well; vLLM and DFLASH_NUM_SPEC_TOKENS do not
    yield from ("--speculative-num-draft-tokens", str(settings.positions_per_step))
    yield from valued("--speculative-draft-attention-backend", speculation.attention_backend)
    yield from valued("--speculative-draft-kv-cache-dtype", speculation.kv_cache_dtype)
