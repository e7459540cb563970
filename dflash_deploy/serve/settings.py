"""Every setting of a deployment, typed once: name, type, unit, default, and the engines that support it.

The names are the ones that DFlash users already have in their `.env`; env-templates/ holds the manual, one file per
group of engines. `.env` and a container's environment are texts; everything between them uses `Settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from dflash_deploy.serve import field as kinds
from dflash_deploy.serve.field import LLAMACPP, SGLANG, VLLM, Field, Schedule, Values
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.speculation import DRAFT_TOKENS, MTP, OFF, Speculation, positions
from dflash_deploy.serve.traces import TracesEndpoint, traces_endpoint

Goal = Literal["latency", "throughput", "context", "coding", "vision"]  # what model and sizes are chosen for
RuntimeName = Literal["compose", "native"]  # how the engine runs: in containers, or as a process
MOST_COPIES = 64  # data-parallel copies of the engine on one machine: more are a mistake
MOST_MEGAPIXELS = 150  # pillow refuses more in one picture, and so do the engines that use it
_PYTHON = (VLLM, SGLANG)  # engines that read safetensors and name attention backends


@dataclass(frozen=True)
class Nodes:
    """This machine's place among those that serve one model: rank 0, at `master`, answers; the others compute."""

    count: int
    rank: int
    master: str


class Settings(Values):
    """The settings of one deployment. An attribute of the class describes a setting, one of an instance is its value.

    Lengths and numbers of tokens are in tokens. `None`, "" and () leave the choice to the engine.
    """

    # --- what is deployed
    dflash_profile = Field(kinds.text, "")
    dflash_pair = Field(kinds.text, "")
    dflash_engine = Field(kinds.text, "")
    dflash_goal = Field(kinds.one_of(*get_args(Goal)), "")
    dflash_runtime = Field(kinds.one_of(*get_args(RuntimeName)), "")
    llama_server = Field(kinds.path, "", unit="file", templates=(LLAMACPP,))
    # --- endpoint
    dflash_bind = Field(kinds.address, "127.0.0.1", unit="address")
    dflash_port = Field(kinds.port, 8000, unit="port")
    vllm_api_key = Field(kinds.text, "", secret=True)
    dflash_api_keys = Field(kinds.text, "", secret=True)
    allowed_media_domains = Field[tuple[str, ...]](kinds.hosts, ())
    allowed_origins = Field[tuple[str, ...]](kinds.origins, ())
    served_model_name = Field[tuple[str, ...]](kinds.words, ())
    # --- domain
    dflash_domain = Field(kinds.domain, "")
    # --- weights
    model_host_path = Field(kinds.path, "", unit="directory")
    model_file = Field(kinds.inner_path, "", templates=(LLAMACPP,))
    mmproj_file = Field(kinds.inner_path, "", templates=(LLAMACPP,))
    dflash_drafter = Field(kinds.path, "")
    drafter_host_path = Field(kinds.path, "", unit="directory")
    drafter_file = Field(kinds.inner_path, "", templates=(LLAMACPP,))
    hf_token = Field(kinds.text, "", secret=True)
    model_path = Field(kinds.text, "", unit="directory", internal=True)
    drafter_path = Field(kinds.text, "", unit="directory", internal=True)
    # --- speculative decoding
    dflash_num_spec_tokens = Field[int | None](kinds.positive, None, unit="tokens")
    dflash_spec_schedule = Field[Schedule](kinds.schedule, (), templates=(VLLM,))
    dflash_attention_backend = Field(kinds.text, "", templates=_PYTHON)
    dflash_kv_cache_dtype = Field(kinds.text, "")
    # --- sizes
    max_model_len = Field[int | None](kinds.tokens, None, unit="tokens")
    max_num_seqs = Field[int | None](kinds.positive, None, unit="sequences")
    max_num_batched_tokens = Field[int | None](kinds.positive, None, unit="tokens")
    gpu_memory_utilization = Field[float | None](kinds.fraction, None, unit="of a GPU's memory", templates=_PYTHON)
    tensor_parallel_size = Field[int | None](kinds.positive, None, unit="GPUs", templates=_PYTHON)
    data_parallel_size = Field[int](kinds.at_most(MOST_COPIES), 1, unit="copies of the engine", templates=_PYTHON)
    nodes = Field[int](kinds.positive, 1, unit="machines", templates=_PYTHON)
    node_rank = Field[int](kinds.whole, 0, templates=_PYTHON)
    master_addr = Field(kinds.text, "", unit="address", templates=_PYTHON)
    prompt_cache_mib = Field[int](kinds.whole, 1024, unit="MiB", templates=(LLAMACPP,))
    limit_images_per_prompt = Field[int | None](kinds.positive, None, unit="images")
    max_image_megapixels = Field[int](kinds.at_most(MOST_MEGAPIXELS), 100, unit="million pixels")
    # about ten photographs; a data URI is a third larger than its file
    max_body_mib = Field[int](kinds.positive, 64, unit="MiB")
    # room for 200 tools of 4 kB
    max_grammar_kib = Field[int](kinds.positive, 1024, unit="KiB")
    hang_seconds = Field[int](kinds.whole, 120, unit="seconds")
    idle_minutes = Field[float | None](kinds.amount, None, unit="minutes", templates=(VLLM, LLAMACPP))
    otlp_traces_endpoint = Field[TracesEndpoint | None](traces_endpoint, None, templates=_PYTHON)
    vllm_cpu_kvcache_space = Field[float | None](kinds.amount, None, unit="GiB", templates=(VLLM,))
    # --- numerics
    kv_cache_dtype = Field(kinds.text, "")
    attention_backend = Field(kinds.text, "", templates=_PYTHON)
    quantization = Field(kinds.quantization, "", templates=_PYTHON)
    enable_prefix_caching = Field[bool | None](kinds.switch, None, templates=_PYTHON)
    enforce_eager = Field[bool](kinds.switch, False, templates=_PYTHON)
    # --- prompting
    reasoning_parser = Field(kinds.text, "", templates=_PYTHON)
    tool_call_parser = Field(kinds.text, "", templates=_PYTHON)
    enable_thinking = Field[bool | None](kinds.switch, None)
    trust_remote_code = Field[bool](kinds.switch, False, templates=_PYTHON)
    extra_args = Field[tuple[str, ...]](kinds.arguments, ())
    # --- image
    dflash_image = Field(kinds.text, "")
    dflash_base_image = Field(kinds.text, "")
    dflash_shm_size = Field(kinds.docker_size, "")

    def __init__(self, values: Mapping[str, str]) -> None:
        """Raises Refused, naming the setting, for a value of the wrong kind, and for values that contradict."""
        super().__init__(values)
        self._check_schedule(values)
        if self.several_machines and self.node_rank >= self.nodes:
            raise Refused(
                f"{Settings.node_rank}={self.node_rank} is not a rank of {self.nodes} machines (0-{self.nodes - 1})",
                hint=f"set another {Settings.node_rank}, or raise {Settings.nodes}",
            )

    def _check_schedule(self, values: Mapping[str, str]) -> None:
        most = self.dflash_num_spec_tokens or DRAFT_TOKENS
        if self.speculating and max((tokens for *_, tokens in self.dflash_spec_schedule), default=0) > most:
            field, limit = Settings.dflash_spec_schedule, Settings.dflash_num_spec_tokens
            raise Refused(
                f"{field}={field.text(values)} has more draft tokens than {limit} ({most})",
                hint=f"{limit} is the most that a step makes: raise it, or lower the schedule",
            )

    @property
    def drafting(self) -> bool:
        """Whether a drafter with weights of its own makes drafts."""
        return self.dflash_drafter.lower() not in {*OFF, MTP}

    @property
    def uses_mtp_head(self) -> bool:
        """Whether the target's own MTP head makes drafts."""
        return self.dflash_drafter.lower() == MTP

    @property
    def speculating(self) -> bool:
        """Whether drafts are made, by drafter or MTP head."""
        return self.drafting or self.uses_mtp_head

    @property
    def draft_tokens(self) -> int:
        """Draft tokens per step; 0 without speculative decoding."""
        return (self.dflash_num_spec_tokens or DRAFT_TOKENS) if self.speculating else 0

    @property
    def positions_per_step(self) -> int:
        """Positions of a sequence that one step verifies; 1 without speculative decoding."""
        return positions(self.draft_tokens)

    @property
    def several_machines(self) -> bool:
        """Whether this is one of several machines that serve one model; its container shares the host's network."""
        return self.nodes > 1

    @property
    def published(self) -> bool:
        """Whether this machine answers requests under a domain, with HTTPS."""
        return bool(self.dflash_domain) and self.answers_requests

    @property
    def answers_requests(self) -> bool:
        """Whether this machine answers requests: it is the only one, or rank 0 of several."""
        return self.node_rank == 0

    @property
    def target(self) -> str:
        """Path of the target's weights as the engine gets it. Raises Refused if it is missing."""
        if not self.model_path:
            raise Refused(f"{Settings.model_path} is not set", hint=f"set {Settings.model_host_path} in .env")
        return _below(self.model_path, self.model_file)

    @property
    def projector(self) -> str | None:
        """Path of the vision projector beside a GGUF target; `None` without one."""
        return _below(self.model_path, self.mmproj_file) if self.mmproj_file else None

    @property
    def speculation(self) -> Speculation | None:
        """How draft tokens are made; `None` without speculative decoding."""
        if not self.speculating:
            return None
        if self.uses_mtp_head:
            # the head has the target's attention backend and cache
            return Speculation(
                path=None,
                draft_tokens=self.draft_tokens,
                attention_backend="",
                kv_cache_dtype="",
                schedule=self.dflash_spec_schedule,
            )
        return Speculation(
            path=_below(self.drafter_path or self.dflash_drafter, self.drafter_file),
            draft_tokens=self.draft_tokens,
            attention_backend=self.dflash_attention_backend,
            kv_cache_dtype=self.dflash_kv_cache_dtype,
            schedule=self.dflash_spec_schedule,
        )

    @property
    def group(self) -> Nodes | None:
        """This machine's place among several; `None` for a single machine."""
        return Nodes(self.nodes, self.node_rank, self.master_addr) if self.several_machines else None


def _below(directory: str, file: str) -> str:
    return f"{directory}/{file}" if file else directory
