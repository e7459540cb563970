"""The settings of an engine as environment variables, read and checked.

The names are those that DFlash users already have in their `.env`; `env-templates/vllm.env` is their manual. A setting
that is absent or empty is left to the engine.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from dflash_deploy.serve.refusal import Refused

OFF = frozenset({"", "off", "none", "false", "no", "0"})
"""Values of DFLASH_DRAFTER that mean plain decoding."""

HAS_A_SETTING = {
    "--api-key": "VLLM_API_KEY: `ps` shows arguments to everybody",
    "--hf-token": "HF_TOKEN: `ps` shows arguments to everybody",
    "--host": "DFLASH_BIND",
    "--port": "DFLASH_PORT",
    "--model": "MODEL_HOST_PATH",
    "--served-model-name": "SERVED_MODEL_NAME",
    "--speculative-config": "DFLASH_DRAFTER and DFLASH_NUM_SPEC_TOKENS",
    "-sc": "DFLASH_DRAFTER and DFLASH_NUM_SPEC_TOKENS",
    "--max-model-len": "MAX_MODEL_LEN",
    "--max-num-seqs": "MAX_NUM_SEQS",
    "--max-num-batched-tokens": "MAX_NUM_BATCHED_TOKENS",
    "--gpu-memory-utilization": "GPU_MEMORY_UTILIZATION",
    "--kv-cache-dtype": "KV_CACHE_DTYPE",
    "--attention-backend": "ATTENTION_BACKEND",
    "--tensor-parallel-size": "TENSOR_PARALLEL_SIZE",
    "-tp": "TENSOR_PARALLEL_SIZE",
}
"""Arguments that EXTRA_ARGS must not hold: the last one wins, unseen by the rules that a plan is held against."""

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no"})


@dataclass(frozen=True)
class Drafter:
    """How draft tokens are made: weights, draft tokens per step, and the drafter's own attention backend."""

    path: str
    draft_tokens: int
    attention_backend: str | None


@dataclass(frozen=True)
class Settings:
    """One engine's settings. Lengths and budgets are in tokens; `None` leaves the choice to the engine."""

    model_path: str
    served_model_names: tuple[str, ...]
    drafter: Drafter | None
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
    reasoning_parser: str | None
    tool_call_parser: str | None
    trust_remote_code: bool
    extra_args: tuple[str, ...]
    host: str
    port: int


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read settings from environment variables.

    Raises Refused, naming the variable, where a value is missing or of the wrong kind.
    """
    env = _Reader(environment)
    return Settings(
        model_path=env.required("MODEL_PATH"),
        served_model_names=tuple((env.text("SERVED_MODEL_NAME") or "").split()),
        drafter=_read_drafter(env),
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
        reasoning_parser=env.text("REASONING_PARSER"),
        tool_call_parser=env.text("TOOL_CALL_PARSER"),
        trust_remote_code=bool(env.switch("TRUST_REMOTE_CODE")),
        extra_args=_extra_args(env),
        host=env.text("DFLASH_BIND") or "127.0.0.1",
        port=_port(env),
    )


def _read_drafter(env: _Reader) -> Drafter | None:
    """`DFLASH_DRAFTER` switches the drafter on; `DRAFTER_PATH`, where given, says where its weights lie."""
    name = env.text("DFLASH_DRAFTER") or ""
    if name.lower() in OFF:
        return None
    return Drafter(
        path=env.text("DRAFTER_PATH") or name,
        draft_tokens=env.positive("DFLASH_NUM_SPEC_TOKENS") or 15,
        attention_backend=env.text("DFLASH_ATTENTION_BACKEND"),
    )


def _quantization(env: _Reader) -> str | None:
    """`auto` and `none` both mean no flag: the engine reads the checkpoint's own config.json."""
    value = env.text("QUANTIZATION")
    return None if value in {"auto", "none"} else value


def _port(env: _Reader) -> int:
    port = env.positive("DFLASH_PORT") or 8000
    if port > 65535:
        raise Refused(f"DFLASH_PORT={port} is no port", hint="ports go up to 65535")
    return port


def _extra_args(env: _Reader) -> tuple[str, ...]:
    words = env.words("EXTRA_ARGS")
    for word in words:
        # vLLM's parser takes --api_key for --api-key
        flag = word.split("=", 1)[0].replace("_", "-")
        if flag in HAS_A_SETTING:
            raise Refused(f"EXTRA_ARGS holds {flag}, which has a setting of its own", hint=f"set {HAS_A_SETTING[flag]}")
    return words


class _Reader:
    """Values of environment variables by kind; every complaint names the variable."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def text(self, name: str) -> str | None:
        return self._environment.get(name, "").strip() or None

    def required(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise Refused(f"{name} is not set", hint=f"set {name} in .env")
        return value

    def positive(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isascii() or not value.isdigit() or int(value) == 0:
            raise Refused(f"{name}={value} is not a positive whole number", hint=f"write {name} as digits, such as 8")
        return int(value)

    def fraction(self, name: str) -> float | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0.0 < number <= 1.0:
            raise Refused(
                f"{name}={value} is not a fraction", hint=f"{name} lies above 0 and at most at 1, such as 0.85"
            )
        return number

    def switch(self, name: str) -> bool | None:
        value = (self.text(name) or "").lower()
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        if value:
            raise Refused(f"{name}={value} is neither on nor off", hint=f"write {name}=on or {name}=off")
        return None

    def words(self, name: str) -> tuple[str, ...]:
        """Words split as a shell would, so that JSON with spaces survives inside single quotes."""
        try:
            return tuple(shlex.split(self.text(name) or ""))
        except ValueError as problem:
            raise Refused(f"{name} cannot be split into words: {problem}", hint="close the quotes") from None
