"""SGLang's parser, run in a process of its own, with the released package first on the path.

`prepare_server_args` is what `python -m sglang.launch_server` calls.
Two options are free text to argparse and are held against SGLang's own lists here: a wrong algorithm it refuses once it
has read the model; over a wrong backend for the drafter it warns and takes another, which nobody asked for.
"""

from __future__ import annotations

import argparse
import importlib

from tests.support.parsers.absent import stub_absent
from tests.support.parsers.answers import answer, argparse_options, argparse_rejection


def main() -> None:
    """Answer for the lists on standard input."""
    stub_absent()
    parse = importlib.import_module("sglang.srt.server_args").prepare_server_args
    algorithms = importlib.import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
    backends = importlib.import_module("sglang.srt.arg_groups.choices").DRAFT_ATTENTION_BACKEND_CHOICES

    def check(arguments: list[str]) -> None:
        parsed = parse(arguments)
        algorithms.from_string(parsed.speculative_algorithm)
        backend = parsed.speculative_draft_attention_backend
        if backend is not None and backend not in backends:
            raise ValueError(f"--speculative-draft-attention-backend: {backend!r} is none of {backends}")

    parser = argparse.ArgumentParser()
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    answer(lambda arguments: argparse_rejection(lambda: check(arguments)), lambda: argparse_options(parser))


if __name__ == "__main__":
    main()
