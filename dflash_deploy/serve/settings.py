"""The settings of an engine as environment variables, read and checked.

The names are those that DFlash users already have in their `.env`, whichever engine it is; env-templates/ holds their
manual, one file per engine. A setting that is absent or empty is left to the engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dflash_deploy.serve.reader import Reader
from dflash_deploy.serve.refusal import Refused

EngineName = Literal["vllm", "sglang", "llamacpp", "llamacpp-buun"]

OFF = frozenset({"", "off", "none", "false", "no", "0"})
"""Values of DFLASH_DRAFTER that mean plain decoding."""

MTP = "mtp"
"""Value of DFLASH_DRAFTER that means the target's own head for multi-token prediction, which comes with its weights."""


_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
"""A host name or an IPv4 address, without scheme, port and path."""

Schedule = tuple[tuple[int, int, int], ...]
"""Draft tokens by load: from so many sequences in a step, to so many, the draft tokens. Rising, from 1 on."""

_RANGE = re.compile(r"([1-9][0-9]{0,5})(?:-([1-9][0-9]{0,5}))?:([0-9]{1,3})", re.ASCII)

DRAFT_TOKENS = 15
"""Where DFLASH_NUM_SPEC_TOKENS is empty: what most drafters' blocks of 16 hold."""


@dataclass(frozen=True)
class Drafter:
    """How draft tokens are made. `draft_tokens` is per step, the token that the target adds left out.

    `path` is the directory or file of its weights, `None` for the target's own head. `schedule` makes fewer draft
    tokens where many sequences share a step; empty: always as many.
    """

    path: str | None
    draft_tokens: int
    attention_backend: str | None
    kv_cache_dtype: str | None
    window: int | None
    schedule: Schedule

    def weights(self, engine: str) -> str:
        """`path`, for an engine that is started here with weights of their own only. Raises Refused without one."""
        if self.path is None:
            raise Refused(
                f"DFLASH_DRAFTER={MTP}: the target's own head is known here for vLLM, not for {engine}",
                hint="name a drafter, or write DFLASH_DRAFTER=off",
            )
        return self.path


@dataclass(frozen=True)
class Nodes:
    """This machine's place among those that serve one model: rank 0, at `master`, answers; the others compute."""

    count: int
    rank: int
    master: str | None


@dataclass(frozen=True)
class Settings:
    """One engine's settings. Lengths and budgets are in tokens; `None` leaves the choice to the engine."""

    model_path: str
    projector_path: str | None
    served_model_names: tuple[str, ...]
    drafter: Drafter | None
    nodes: Nodes | None
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    gpu_memory_utilization: float | None
    kv_cache_dtype: str | None
    attention_backend: str | None
    quantization: str | None
    tensor_parallel_size: int | None
    prefix_caching: bool | None
    enforce_eager: bool
    images_per_prompt: int | None
    media_domains: tuple[str, ...]
    max_body_mib: int | None
    reasoning_parser: str | None
    tool_call_parser: str | None
    thinking: bool | None
    trust_remote_code: bool
    extra_args: tuple[str, ...]
    host: str
    port: int


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read settings from environment variables.

    Raises Refused, naming the variable, where a value is missing or of the wrong kind.
    """
    env = Reader(environment)
    model = env.required("MODEL_PATH")
    return Settings(
        model_path=_file(env, model, "MODEL_FILE"),
        projector_path=_file(env, model, "MMPROJ_FILE") if env.text("MMPROJ_FILE") else None,
        served_model_names=tuple((env.text("SERVED_MODEL_NAME") or "").split()),
        drafter=_read_drafter(env),
        nodes=_read_nodes(env),
        max_model_len=env.positive("MAX_MODEL_LEN"),
        max_num_seqs=env.positive("MAX_NUM_SEQS"),
        max_num_batched_tokens=env.positive("MAX_NUM_BATCHED_TOKENS"),
        gpu_memory_utilization=env.fraction("GPU_MEMORY_UTILIZATION"),
        kv_cache_dtype=env.text("KV_CACHE_DTYPE"),
        attention_backend=env.text("ATTENTION_BACKEND"),
        quantization=_quantization(env),
        tensor_parallel_size=env.positive("TENSOR_PARALLEL_SIZE"),
        prefix_caching=env.switch("ENABLE_PREFIX_CACHING"),
        enforce_eager=bool(env.switch("ENFORCE_EAGER")),
        images_per_prompt=env.positive("LIMIT_IMAGES_PER_PROMPT"),
        media_domains=_media_domains(env),
        max_body_mib=env.positive("MAX_BODY_MIB"),
        reasoning_parser=env.text("REASONING_PARSER"),
        tool_call_parser=env.text("TOOL_CALL_PARSER"),
        thinking=env.switch("ENABLE_THINKING"),
        trust_remote_code=bool(env.switch("TRUST_REMOTE_CODE")),
        extra_args=env.words("EXTRA_ARGS"),
        host=env.text("DFLASH_BIND") or "127.0.0.1",
        port=_port(env),
    )


def _file(env: Reader, directory: str, name: str) -> str:
    """A file of a directory where `name` says which; the directory itself where it does not."""
    file = env.text(name)
    if file is None:
        return directory
    if file.startswith("/") or ".." in file.split("/"):
        raise Refused(f"{name}={file} leads out of the directory", hint="name a file below the weights' directory")
    return f"{directory}/{file}"


def _read_drafter(env: Reader) -> Drafter | None:
    """`DFLASH_DRAFTER` switches the drafter on; `DRAFTER_PATH`, where given, says where its weights lie."""
    name = env.text("DFLASH_DRAFTER") or ""
    if name.lower() in OFF:
        return None
    draft_tokens = env.positive("DFLASH_NUM_SPEC_TOKENS") or DRAFT_TOKENS
    if name.lower() == MTP:
        # what is set for a drafter's attention and cache is not said of the head, which has the target's
        return Drafter(None, draft_tokens, None, None, None, _read_schedule(env, draft_tokens))
    return Drafter(
        path=_file(env, env.text("DRAFTER_PATH") or name, "DRAFTER_FILE"),
        draft_tokens=draft_tokens,
        attention_backend=env.text("DFLASH_ATTENTION_BACKEND"),
        kv_cache_dtype=env.text("DFLASH_KV_CACHE_DTYPE"),
        window=env.positive("DFLASH_DRAFT_WINDOW"),
        schedule=_read_schedule(env, draft_tokens),
    )


def _read_schedule(env: Reader, most: int) -> Schedule:
    """`1-2:7,3-8:3`: up to 2 sequences in a step 7 draft tokens each, up to 8 of them 3, and so on beyond."""
    written = env.text("DFLASH_SPEC_SCHEDULE")
    if written is None:
        return ()
    ranges = [_RANGE.fullmatch(part.strip()) for part in written.split(",")]
    schedule = tuple((int(one[1]), int(one[2] or one[1]), int(one[3])) for one in ranges if one is not None)
    starts = (1, *(last + 1 for _, last, _ in schedule[:-1]))
    sound = len(schedule) == len(ranges) and all(
        first == start and first <= last for start, (first, last, _) in zip(starts, schedule, strict=True)
    )
    if not sound:
        raise Refused(
            f"DFLASH_SPEC_SCHEDULE={written} is no schedule",
            hint="write sequences:draft tokens, from 1 on and without gaps, such as 1-2:7,3-8:3",
        )
    if max(tokens for _, _, tokens in schedule) > most:
        raise Refused(
            f"DFLASH_SPEC_SCHEDULE={written} has more draft tokens than DFLASH_NUM_SPEC_TOKENS ({most})",
            hint="DFLASH_NUM_SPEC_TOKENS is the most that a step makes: raise it, or lower the schedule",
        )
    return schedule


def _read_nodes(env: Reader) -> Nodes | None:
    count = env.positive("NODES") or 1
    if count == 1:
        return None
    rank = env.whole("NODE_RANK") or 0
    if rank >= count:
        raise Refused(f"NODE_RANK={rank} is no rank among {count} machines", hint=f"ranks go from 0 to {count - 1}")
    return Nodes(count, rank, env.text("MASTER_ADDR"))


def _quantization(env: Reader) -> str | None:
    """`auto` and `none` both mean no flag: the engine reads the checkpoint's own config.json."""
    value = env.text("QUANTIZATION")
    return None if value in {"auto", "none"} else value


def _media_domains(env: Reader) -> tuple[str, ...]:
    """Host names as vLLM compares them with that of an address: whole, and in lower case."""
    names = tuple((env.text("ALLOWED_MEDIA_DOMAINS") or "").lower().replace(",", " ").split())
    for name in names:
        if not _HOST.fullmatch(name):
            raise Refused(
                f"ALLOWED_MEDIA_DOMAINS={name} is no host name", hint="write it as images.example.com, without https://"
            )
    return names


def _port(env: Reader) -> int:
    port = env.positive("DFLASH_PORT") or 8000
    if port > 65535:
        raise Refused(f"DFLASH_PORT={port} is no port", hint="ports go up to 65535")
    return port
