"""Launch commands, theirs and ours, as settings that can be compared: flag or variable to value."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import PurePosixPath

Value = str | float | bool

ALIASES = {
    # docker run
    "-d": "--detach",
    "-p": "--publish",
    "-v": "--volume",
    # llama-server
    "-m": "--model",
    "-md": "--model-draft",
    "-ngl": "--n-gpu-layers",
    "-ngld": "--n-gpu-layers-draft",
    "-np": "--parallel",
    "-c": "--ctx-size",
    "-cd": "--ctx-size-draft",
    "-fa": "--flash-attn",
    "-b": "--batch-size",
    "-ub": "--ubatch-size",
    # torch reads both, and means the same
    "PYTORCH_ALLOC_CONF": "PYTORCH_CUDA_ALLOC_CONF",
}
OPPOSITES = {"--no-enable-prefix-caching": "--enable-prefix-caching"}
WEIGHTS = ("model", "--model-path", "--model")
# Settings that name a place of weights.
DRAFTERS = ("--speculative-config.model", "--speculative-draft-model-path", "--model-draft")

INTERPRETERS = {"python", "python3"}
ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=")
IMAGE = re.compile(r"[\w.-]+/[\w.-]+:[\w.-]+")


@dataclass(frozen=True)
class Command:
    """What is started, and with which settings; `program` is empty where only options are given."""

    program: str
    settings: Mapping[str, Value]

    @property
    def model(self) -> str:
        """What is to be served: a repository or a place."""
        return next(str(self.settings[name]) for name in WEIGHTS if name in self.settings)


def parse(text: str) -> Command:
    """A command as it stands on a page: lines may go on without a backslash, optional exports stand in comments."""
    lines = [line.replace("# export ", "export ") for line in text.splitlines()]
    # on pages that were flattened a backslash stands before a space
    return parse_words(shlex.split(" ".join(line for line in lines if not line.startswith("#")).replace("\\ ", " ")))


def parse_words(words: Sequence[str]) -> Command:
    """A command as a list of words."""
    words = [word for word in words if word != "export"]
    environment = list(takewhile(ASSIGNMENT.match, words))
    rest = words[len(environment) :]
    program, container, arguments = _started(rest)
    mounts = [volume.split(":") for volume in _all_of(container, "-v")]
    around = _flags([*container, *(f"--env={assignment}" for assignment in environment)])
    settings = {name: normal(value) for name, value in around}
    for name, value in _flags(arguments):
        place = name in WEIGHTS or name in DRAFTERS
        settings[name] = _mounted(str(value), mounts) if place else normal(value)
    return Command(program, settings)


def _started(words: list[str]) -> tuple[str, list[str], list[str]]:
    """The program, the options of its container and its own arguments."""
    if words[:3] == ["docker", "model", "run"]:
        return "docker model run", [], words[3:]
    container: list[str] = []
    if words[:2] == ["docker", "run"] or IMAGE.fullmatch(words[0]):
        image = next(number for number, word in enumerate(words) if IMAGE.fullmatch(word) and "=" not in word)
        container = [*words[2:image], f"--image={words[image]}"]
        words = words[image + 1 :]
        if words[0] not in INTERPRETERS:
            words = ["vllm", "serve", *words]  # the image's entry point
    if words[0].startswith("-"):
        return "", container, words
    if words[0] in INTERPRETERS:
        return words[2], container, words[3:]
    name = PurePosixPath(words[0]).name
    return name, container, words[2:] if name == "vllm" else words[1:]


def _all_of(words: list[str], flag: str) -> Iterator[str]:
    return (value for word, value in pairwise(words) if word == flag)


def _flags(words: Sequence[str]) -> Iterator[tuple[str, Value]]:
    """Flags and variables with their values; each key of a JSON value by itself. What stands first is the model."""
    position = 0
    while position < len(words):
        flag, _, attached = words[position].partition("=")
        position += 1
        if not flag.startswith("-"):
            yield "model", words[position - 1].removeprefix("hf.co/")
            continue
        values = [attached] if attached else []
        while not attached and position < len(words) and not words[position].startswith("-"):
            values.append(words[position])
            position += 1
        yield from _named(flag, " ".join(values))


def _named(flag: str, value: str) -> Iterator[tuple[str, Value]]:
    if flag == "--env":
        flag, _, value = value.partition("=")
    flag = "image" if flag == "--image" else ALIASES.get(flag, flag)
    if flag in OPPOSITES:
        yield OPPOSITES[flag], False
    elif value.startswith("{"):
        for key, inner in json.loads(value).items():
            yield f"{flag}.{key}", inner
    else:
        yield flag, value or True


def _mounted(place: str, mounts: Sequence[Sequence[str]]) -> str:
    """Where a path of the container lies outside it."""
    return next((mount[0] for mount in mounts if mount[1] == place), place)


def normal(value: Value) -> Value:
    """Numbers as numbers; words without regard to case, as the engines read backends."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value.lower()


def same_weights(place: Value, repo: str, file: str | None) -> bool:
    """Whether a place of the seed holds these weights: the same repository, or a path that ends in its name."""
    path = PurePosixPath(str(place))
    if not path.is_absolute():
        return str(place) == repo
    return path.name == (file or PurePosixPath(repo).name)
