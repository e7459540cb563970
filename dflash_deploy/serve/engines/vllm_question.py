"""`python -m dflash_deploy.serve.engines.vllm_question ARGUMENTS`: what vLLM makes of the arguments of `vllm serve`.

It parses them as `vllm` does, makes the whole configuration from config.json and the tokenizer
(`EngineArgs.create_engine_config`), and lets vLLM choose the attention backends of target and drafter. It loads no
weights. Seen with 0.32.0 on a processor, and with 0.33.0 on GPUs that the tests simulate; the names of modules
are those of 0.26 to 0.33.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from dflash_deploy.serve import answer

# Modules with the parser of `vllm serve`: in 0.33, in 0.32, and before.
PARSERS = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)

# Files with a tokenizer, any of them.
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model", "tekken.json")

Decided = dict[str, object]


def main(arguments: list[str]) -> NoReturn:
    """Write one answer, and end without waiting for threads of the engine."""
    try:
        config = configuration(arguments)
    except SystemExit as ended:
        answer.refused(str(ended.code))
    # all that the engine raises over its configuration ends its start
    except Exception as problem:
        answer.refused(sentence(problem))
    else:
        _say_decided(config)
    os._exit(0)


def _say_decided(config: Any) -> None:
    try:
        answer.accepted(decided(config))
    except ValueError as problem:
        # no attention backend reads this cache on this GPU
        answer.refused(sentence(problem))


def configuration(arguments: list[str]) -> Any:
    """vLLM's VllmConfig. Raises what vLLM raises, and SystemExit with the parser's own words."""
    launcher = _module(PARSERS)
    parser = _attribute("vllm.utils.argparse_utils", "FlexibleArgumentParser")(prog="vllm")
    serve = parser.add_subparsers(dest="subparser", required=True).add_parser("serve")
    launcher.make_arg_parser(serve)
    parsed = _parsed(parser, arguments)
    parsed.model = getattr(parsed, "model_tag", None) or parsed.model
    launcher.validate_parsed_serve_args(parsed)
    if not has_tokenizer(Path(parsed.model)):
        # vLLM looks up the tokens of the parser, which are not in config.json
        parsed.reasoning_parser = ""
    return _attribute("vllm.engine.arg_utils", "AsyncEngineArgs").from_cli_args(parsed).create_engine_config()


def has_tokenizer(directory: Path) -> bool:
    """Whether a model's directory has a tokenizer."""
    return any((directory / name).is_file() for name in TOKENIZERS)


def _parsed(parser: Any, arguments: list[str]) -> Any:
    written = io.StringIO()
    try:
        with contextlib.redirect_stderr(written):
            return parser.parse_args(arguments)
    except SystemExit as ended:
        said = written.getvalue()
        raise SystemExit(said.partition("error: ")[2].strip() or said.strip() or str(ended)) from None


def decided(config: Any) -> Decided:
    """What vLLM chose, by the names of this program's settings and of vLLM's fields.

    Raises ValueError if no attention backend is valid.
    """
    cache, scheduler = config.cache_config, config.scheduler_config
    found: Decided = {
        "attention_backend": target_backend(config),
        "kv_cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size,
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "prefix_caching": cache.enable_prefix_caching,
        "quantization": config.model_config.quantization or "none",
        "cudagraph_mode": getattr(config.compilation_config.cudagraph_mode, "name", "NONE"),
        "model_runner": "V2" if getattr(config, "use_v2_model_runner", False) else "V1",
    }
    speculative = config.speculative_config
    if speculative is not None:
        found["speculative_method"] = speculative.method
        found["draft_tokens"] = speculative.num_speculative_tokens
    if speculative is not None and speculative.method == "dflash":
        found["drafter_attention_backend"] = drafter_backend(config)
        found["drafter_kv_cache_dtype"] = getattr(speculative, "kv_cache_dtype", None) or cache.cache_dtype
    return found


def target_backend(config: Any) -> str:
    """The attention backends of the target's layers. Raises ValueError if a layer has none."""
    return _backends(config, config.model_config)


def drafter_backend(config: Any) -> str:
    """The attention backends of a DFlash drafter. Raises ValueError if a layer has none."""
    return _backends(as_drafter(config), config.speculative_config.draft_model_config)


def as_drafter(config: Any) -> Any:
    """The VllmConfig with which a DFlash drafter is loaded: its own backend and type of cache, not the target's.

    Source: vllm/v1/worker/gpu/spec_decode/dflash/utils.py and v1/spec_decode/llm_base_proposer.py, 0.33.0.
    """
    replace, speculative = _attribute("vllm.config", "replace"), config.speculative_config
    attention = replace(
        config.attention_config,
        use_non_causal=_attends_non_causally(speculative.draft_model_config.hf_config),
        backend=getattr(speculative, "attention_backend", None),
    )
    changed: dict[str, Any] = {"attention_config": attention}
    if getattr(speculative, "kv_cache_dtype", None) is not None:
        changed["cache_config"] = replace(config.cache_config, cache_dtype=speculative.kv_cache_dtype)
    return replace(config, **changed)


def _attends_non_causally(drafter: Any) -> bool:
    """Whether a layer of the drafter attends to later positions, as vLLM reads its config.json; yes if unknown."""
    try:
        any_non_causal = _attribute("vllm.model_executor.models.qwen3_dflash", "dflash_has_any_non_causal")
    except (ImportError, AttributeError):
        return True
    # vLLM renames the architecture and keeps the drafter's own configuration
    return bool(any_non_causal(drafter))


def _backends(config: Any, model: Any) -> str:
    select = _attribute("vllm.v1.attention.selector", "get_attn_backend")
    with _attribute("vllm.config", "set_current_vllm_config")(config):
        chosen = [
            select(
                head_size,
                model.dtype,
                config.cache_config.cache_dtype,
                use_mla=model.use_mla,
                # the layers of gpt-oss have sinks, which not every backend can do
                has_sink="gpt_oss" in str(getattr(model.hf_text_config, "model_type", "")),
                use_mm_prefix=bool(getattr(model, "is_mm_prefix_lm", False)),
                num_heads=model.get_num_attention_heads(config.parallel_config),
                has_sliding_window=sliding,
            ).get_name()
            for head_size, sliding in sorted(_layers(model))
        ]
    return ", ".join(dict.fromkeys(map(str, chosen)))


def _layers(model: Any) -> set[tuple[int, bool]]:
    """The head sizes of the layers with attention, and whether each has a window."""
    kinds: list[str] = list(getattr(model.hf_text_config, "layer_types", None) or ["full_attention"])
    layers = getattr(model, "model_arch_config", None)
    return {
        (_head_size(layers, index) or model.get_head_size(), kind == "sliding_attention")
        for index, kind in enumerate(kinds)
        if kind in {"full_attention", "sliding_attention"}
    }


def _head_size(layers: Any, index: int) -> int | None:
    """The head size of one layer, where this release knows it by layer."""
    try:
        return int(layers[index].head_size)
    except (TypeError, AttributeError, IndexError, KeyError):
        return None


def sentence(problem: BaseException) -> str:
    """What the engine says, without the values of its arguments that pydantic adds."""
    said = next(_messages(problem), "") or str(problem)
    # such as a KeyError, whose text is only the key
    return said if " " in said.strip() else f"{type(problem).__name__}: {said}"


def _messages(problem: BaseException) -> Iterator[str]:
    errors: Callable[[], list[dict[str, Any]]] | None = getattr(problem, "errors", None)
    if errors is None:
        return
    for error in errors():
        said = str(error.get("msg", "")).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if error.get("type") in {"value_error", "assertion_error"}:
            yield said
        else:
            yield f"{'.'.join(map(str, error.get('loc', ())))}: {said}"


def _module(names: tuple[str, ...]) -> Any:
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ModuleNotFoundError(f"this vLLM has none of {', '.join(names)}")


def _attribute(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    main(sys.argv[1:])
