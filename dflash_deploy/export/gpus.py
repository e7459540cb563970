"""The GPUs of one pod: those of the tensor parallelism, times what EXTRA_ARGS ask for."""

from __future__ import annotations

from math import prod

from dflash_deploy.errors import NotPossible
from dflash_deploy.serve.engines.base import extra_flags
from dflash_deploy.serve.settings import Settings

PIPELINE = ("--pipeline-parallel-size", "-pp", "--pp-size")
DATA = ("--data-parallel-size", "-dp", "--dp-size")
CONTEXT = ("--prefill-context-parallel-size", "-pcp")
"""Flags of vLLM and SGLang whose number multiplies the GPUs, with their short names."""

SHARED = "--enable-dp-attention"
"""With this flag of SGLang, the GPUs of the tensor parallelism are also those of the data parallelism."""

MOST = 1024
"""The largest number that is taken for one of GPUs."""


def gpus_of_pod(settings: Settings, nodes: int) -> int:
    """GPUs of one of `nodes` pods that serve a model together.

    Raises NotPossible for a flag without a number, and for data parallelism over several nodes: its ranks need flags
    of their own.
    """
    data = _number(settings, DATA)
    if nodes > 1 and data > 1:
        raise NotPossible(
            f"{Settings.extra_args} holds {DATA[0]} {data}, and {Settings.nodes}={nodes}: "
            "data parallelism over several nodes cannot be exported",
            hint=f"remove it from {Settings.extra_args}, and export with `--replicas {data}`",
        )
    data = 1 if SHARED in extra_flags(settings) else data
    ranks = prod((settings.tensor_parallel_size or 1, data, _number(settings, PIPELINE), _number(settings, CONTEXT)))
    return max(1, -(-ranks // nodes))


def _number(settings: Settings, names: tuple[str, ...]) -> int:
    """The number behind a flag in EXTRA_ARGS, as the engine reads it: the last one counts. 1 without the flag."""
    found = 1
    words = settings.extra_args
    for index, flag in enumerate(extra_flags(settings)):
        if flag in names:
            _, equals, value = words[index].partition("=")
            found = _counted(flag, value if equals else "".join(words[index + 1 : index + 2]))
    return found


def _counted(flag: str, value: str) -> int:
    if value.isascii() and value.isdigit() and len(value) < 5 and 1 <= int(value) <= MOST:
        return int(value)
    raise NotPossible(
        f"`{value[:80]}` is not a valid number for {flag} (1-{MOST}) in {Settings.extra_args}",
        hint="a pod asks for a number of GPUs: write it as one, such as 2",
    )
