"""Questions about plans, and the process that answers all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dflash_deploy.plan.command import engine_environment
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.engines import Build
from dflash_deploy.serve.engines.installed import CPU_SITE
from dflash_deploy.serve.settings import Settings
from tests.support.decisions.configs import configs
from tests.support.parsers.fetch import REPOSITORY, fetched

GIB = 2**30

RELEASE = "0.33.0"  # the release whose Python files are asked


@dataclass(frozen=True)
class Question:
    """A GPU, the config.json of both models, and the arguments of `vllm serve`."""

    capability: str
    name: str
    memory: int
    gpus: int
    target: Mapping[str, Any]
    drafter: Mapping[str, Any]
    arguments: Sequence[str]
    sized: bool
    """Whether the KV cache is sized: not that of the tiny target, whose heads four GPUs cannot share."""

    @classmethod
    def of(cls, plan: Plan, **changed: str) -> Question:
        """The question about a plan; `changed` are settings in lower case with another value."""
        hardware, (target, drafter) = plan.profile.hardware, configs(plan)
        values = engine_environment(plan) | {name.upper(): value for name, value in changed.items()}
        # relative: the process that answers has them in its working directory
        places = {Settings.model_path.name: "target", Settings.drafter_path.name: "drafter"}
        # the parsers tier asks for these; vLLM searches their tokens in the tokenizer, which is the tiny target's here
        others = {Settings.reasoning_parser.name: "", Settings.served_model_name.name: "model"}
        settings = Settings({name: value for name, value in (values | places | others).items() if value})
        arguments = plan.engine.kind.arguments(settings, Build(RELEASE))
        capability = plan.profile.match.compute_capability or "0.0"
        memory, gpus = int(hardware.memory_gib * GIB), plan.profile.match.gpus
        sized = not plan.pair.target.bundled
        return cls(capability, f"NVIDIA {capability}", memory, gpus, target, drafter, arguments, sized)


@dataclass(frozen=True)
class Decision:
    """What vLLM decided, by name, and its sizes of the KV cache; or its sentence, and where it said it."""

    decided: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""
    where: str = ""
    kind: str = ""
    warnings: Sequence[str] = ()


def decisions(questions: Sequence[Question]) -> list[Decision]:
    """vLLM's decisions, in the order of the questions. The first use on a machine downloads its wheel."""
    texts = [json.dumps(asdict(question), sort_keys=True) for question in questions]
    # pairs with the same numbers get the same answer
    distinct = list(dict.fromkeys(texts))
    answers = dict(zip(distinct, _asked(distinct), strict=True))
    return [answers[text] for text in texts]


def _asked(questions: Sequence[str]) -> list[Decision]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "HF_"))}
    paths = [fetched(f"vllm-{RELEASE}"), CPU_SITE, REPOSITORY]
    with tempfile.TemporaryDirectory() as directory:
        answers = Path(directory) / "answers.json"
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.decisions.simulated", str(answers)],
            input=f"[{','.join(questions)}]",
            env={
                **inherited,
                "PYTHONPATH": os.pathsep.join(map(str, paths)),
                "PYTHONSAFEPATH": "1",
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_LOGGING_LEVEL": "WARNING",
                "HOME": directory,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not answers.exists():
            raise RuntimeError(f"vLLM {RELEASE} could not be asked:\n{done.stderr[-4000:]}")
        return [Decision(**answer) for answer in json.loads(answers.read_text(encoding="utf-8"))]
