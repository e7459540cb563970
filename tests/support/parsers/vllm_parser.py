"""vLLM's parser, run in a process of its own, with the module `vllm` of the version in question first on the path.

`vllm serve` parses with argparse, which takes the names of backends and data types for plain strings; it refuses a
wrong one when it makes its configuration. So the parts of the configuration that need no model are made here as well.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from tests.support.parsers.answers import answer, argparse_options, argparse_rejection


def _first(*names: str) -> Any:
    """The first of these that is there, as `module:attribute`: vLLM moves its modules about."""
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"vLLM has none of {', '.join(names)}")


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser of `vllm`, and that of its command `serve`."""
    parser_class = _first("vllm.utils.argparse_utils:FlexibleArgumentParser")
    add_arguments = _first(
        "vllm.entrypoints.common.cli_args:make_arg_parser", "vllm.entrypoints.launchers.cli_args:make_arg_parser"
    )
    parser: argparse.ArgumentParser = parser_class(prog="vllm")
    serve = parser.add_subparsers(dest="subparser", required=True).add_parser("serve")
    add_arguments(serve)
    return parser, serve


class _Configuration:
    """Makes those parts of the engine's configuration that need no weights and no GPU."""

    def __init__(self) -> None:
        self._validators = [
            _first(
                "vllm.entrypoints.common.cli_args:validate_parsed_serve_args",
                "vllm.entrypoints.launchers.cli_args:validate_parsed_serve_args",
            ),
            _first(
                "vllm.entrypoints.common.cli_args:validate_api_server_args",
                "vllm.entrypoints.launchers.launcher:validate_api_server_args",
            ),
        ]
        self._attention = _first("vllm.config.attention:AttentionConfig")
        self._cache = _first("vllm.config.cache:CacheConfig")
        self._observability = _first("vllm.config.observability:ObservabilityConfig")
        self._speculative = _first("vllm.config.speculative:SpeculativeConfig")
        # reads the drafter's and the target's weights; the fields are checked before it and after it
        self._speculative.__post_init__ = lambda *_, **__: None
        self._quantizations = _first("vllm.model_executor.layers.quantization:QUANTIZATION_METHODS")

    def make(self, arguments: argparse.Namespace) -> None:
        """Raise as the engine would over a value that its parser let through."""
        # the file lies where the engine runs, which is not here
        arguments.chat_template = None
        if arguments.reasoning_parser:
            # as EngineArgs does, which cannot be made here: it looks for the model
            arguments.structured_outputs_config.reasoning_parser = arguments.reasoning_parser
        for validate in self._validators:
            validate(arguments)
        self._attention(backend=arguments.attention_backend)
        self._cache(cache_dtype=arguments.kv_cache_dtype)
        self._observability(otlp_traces_endpoint=arguments.otlp_traces_endpoint)
        self._quantization("--quantization", arguments.quantization)
        if arguments.speculative_config is not None:
            speculative = self._speculative(**arguments.speculative_config)
            self._cache(cache_dtype=speculative.kv_cache_dtype or "auto")
            self._quantization("the drafter's quantization", speculative.quantization)

    def _quantization(self, option: str, method: str | None) -> None:
        # ModelConfig says so in the same words, once it has read the model
        if method is not None and method not in self._quantizations:
            raise ValueError(f"{option}: Unknown quantization method: {method}. Must be one of {self._quantizations}.")


def main() -> None:
    """Answer for the lists on standard input."""
    parser, serve = _parsers()
    configuration = _Configuration()
    answer(
        lambda arguments: argparse_rejection(lambda: configuration.make(parser.parse_args(arguments))),
        # the class reads -O3 as --optimization-level 3 before argparse sees it
        lambda: [*argparse_options(serve), "-O"],
    )


if __name__ == "__main__":
    main()
