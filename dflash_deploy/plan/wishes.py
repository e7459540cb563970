"""The options of a plan, and what is known about the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from dflash_deploy.serve.settings import Goal, RuntimeName

__all__ = ["AUTO", "GOALS", "RUNTIMES", "Checkpoints", "Choice", "Goal", "RuntimeName"]

RUNTIMES: tuple[RuntimeName, ...] = get_args(RuntimeName)
GOALS: tuple[Goal, ...] = get_args(Goal)

AUTO: Final = "auto"
"""As many engines as the machine has room for."""


@dataclass(frozen=True)
class Choice:
    """What the user asked for. `None` leaves it to the plan; `edited` holds the lines of an existing `.env`.

    `model` is the name of a pair or the repository of its target, `engine` a release or an engine's name, `recipe` the
    name of a recipe of the profile.
    """

    profile: str | None = None
    model: str | None = None
    engine: str | None = None
    recipe: str | None = None
    runtime: RuntimeName | None = None
    goal: Goal | None = None
    max_model_len: int | None = None
    concurrency: int | None = None
    drafter: bool = True
    host: str | None = None
    port: int | None = None
    domain: str | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    replicas: int | Literal["auto"] | None = None
    models_dir: Path = Path("~/models")
    edited: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoints:
    """What is known about weights: their config.json, or a GGUF's header. `None`: unknown.

    `tokenizer`, `template` and `processor` say whether the target has a tokenizer, a chat template and a processor of
    images, `head` whether its files hold weights of an MTP head. `largest_token` is the largest id of its added tokens,
    `projector` the architecture of the GGUF that is named as projector. `snapshots` has a directory to use instead for
    each setting that names a model's folder in the cache of the Hub's client.
    """

    target: Mapping[str, object] | None = None
    drafter: Mapping[str, object] | None = None
    tokenizer: bool | None = None
    template: bool | None = None
    head: bool | None = None
    processor: bool | None = None
    largest_token: int | None = None
    projector: str | None = None
    snapshots: Mapping[str, str] = field(default_factory=dict)
