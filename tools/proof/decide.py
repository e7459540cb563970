"""The decisions of a proof, from facts: which steps can run here, with which arguments, and what their output says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dflash_deploy.host.gpu import Gpu, GpuProcess
from dflash_deploy.intake.files import read_text
from dflash_deploy.intake.parse import parse_yaml
from dflash_deploy.plan.compatible import below
from tools.proof.share import StepState

STEPS = Path(__file__).parent / "steps.yaml"

# CUDA 13, which the default engine is built for, needs it (NVIDIA's table of CUDA versions and drivers).
OLDEST_DRIVER = "580"

Kind = Literal["deployment", "shape", "loader", "sleep", "doctor"]


class Step(BaseModel):
    """A step of steps.yaml, which describes the fields."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]
    proves: str
    kind: Kind
    limit: Annotated[int, Field(ge=1, le=3600)]
    engines: list[Literal["vllm", "llamacpp"]] = ["vllm", "llamacpp"]
    cuda: bool = False
    memory: Annotated[float, Field(ge=0, le=1000)] = 0
    model: str = ""
    drafts: bool = True
    settings: dict[str, str] = {}
    commands: list[list[str]] = []
    fault: Literal["killed", "drafter", "settings", "held", ""] = ""
    error: str = ""


def steps(path: Path = STEPS) -> tuple[Step, ...]:
    """All steps, in the order in which they run."""
    return tuple(Step.model_validate(one) for one in parse_yaml(read_text(path))["steps"])


@dataclass(frozen=True)
class Here:
    """What is known of this machine. `installed` engines run natively; `docker` says whether Docker answers,
    `extra` are arguments for every deployment."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    others: tuple[GpuProcess, ...] = ()
    engine: str = "llamacpp"
    installed: bool = True
    docker: bool = False
    extra: str = ""


_FROM_HERE = {
    "killed": "it ends a process of the engine, which is in a container here",
    "held": "it needs PyTorch in this Python environment",
}


def obstacle(step: Step, here: Here) -> str:
    """Why a step cannot run here; empty if it can."""
    if step.kind == "doctor":
        return ""
    if here.engine not in step.engines:
        return f"it needs {' or '.join(step.engines)}, and this proof runs {here.engine}"
    if step.kind != "deployment" and not here.installed:
        return f"it needs {here.engine} in this Python environment, not in a container"
    if step.fault in _FROM_HERE and not here.installed:
        return _FROM_HERE[step.fault]
    if not (here.installed or here.docker):
        return f"neither {here.engine} nor Docker is here"
    return _gpu_obstacle(step, here)


def _gpu_obstacle(step: Step, here: Here) -> str:
    if not here.gpus:
        return (here.problem or "no GPU") if step.cuda or here.problem else ""
    gpu = here.gpus[0]
    if gpu.driver and below(gpu.driver, OLDEST_DRIVER):
        return f"driver {gpu.driver} is too old: CUDA 13 needs {OLDEST_DRIVER} or newer"
    needed, most, free = step.memory * 2**30, gpu.memory, gpu.free
    if most is not None and most < needed:
        return f"{gpu.name} has {most / 2**30:.0f} GiB; the step needs {step.memory:g}"
    if free is not None and free < needed:
        users = ", ".join(f"{one.name} (process {one.pid})" for one in here.others)
        used = f": used by {users}" if users else ""
        return f"{free / 2**30:.1f} GiB of {gpu.name} are free, the step needs {step.memory:g}{used}"
    return ""


@dataclass(frozen=True)
class Command:
    """A command that ran: its words, exit code (`None`: the limit ended it), seconds, and SHA-256 of its output."""

    words: tuple[str, ...]
    code: int | None
    seconds: float
    log: str


@dataclass(frozen=True)
class Outcome:
    """How a step ended. `reason` says why it did not pass, or what a rehearsal could not show.

    `named` has the catalog's names of what ran: `profile`, `model` and `engine`, and the digest of its `image`; empty
    if nothing did. `settings` are those that can be published.
    """

    step: Step
    state: StepState
    seconds: float = 0.0
    reason: str = ""
    commands: tuple[Command, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    log: str = ""
    named: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


# Share of drafts accepted up to each position: HumanEval, 15 draft tokens (discussion of the drafter's card).
RATES = (0.92, 0.82, 0.73, 0.65, 0.58, 0.52, 0.46, 0.42, 0.38, 0.34, 0.31, 0.28, 0.25, 0.22, 0.19)


def shape_command(
    planned: Sequence[str], target: Path, drafter: Path, *, drafts: bool, port: int, dummy: bool = True
) -> tuple[str, ...]:
    """The engine's arguments of `plan`, for dummy weights and a dictated acceptance, without the gateway.

    Not `dummy`: vLLM's CPU build (0.32) can neither dictate an acceptance nor draft with dummy weights.
    """
    words = list(without_gateway(planned, port))
    words[1] = str(target)
    at = words.index("--speculative-config")
    drafting = _drafting(words[at + 1], drafter, dictated=dummy)
    words[at : at + 2] = ["--speculative-config", drafting] if drafts else []
    return (*words, "--load-format", "dummy") if dummy else tuple(words)


def without_gateway(planned: Sequence[str], port: int) -> tuple[str, ...]:
    """The engine's arguments of `plan` for a server that needs no API key."""
    words = list(planned[planned.index("serve") :])
    words[words.index("--port") + 1] = str(port)
    at = words.index("--middleware")
    del words[at : at + 2]
    return tuple(words)


def concurrencies(words: Sequence[str]) -> str:
    """The concurrencies to measure at: 1 to 8, without the ones at which requests would wait for others."""
    most = int(words[words.index("--max-num-seqs") + 1])
    return ",".join(str(one) for one in (1, 2, 4, 8) if one <= most)


def _drafting(config: str, drafter: Path, *, dictated: bool) -> str:
    known = json.loads(config) | {"model": str(drafter)}
    rates = list(RATES[: known["num_speculative_tokens"]])
    more = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates} if dictated else {}
    return json.dumps(known | more)


def unknown_options(words: Sequence[str], known: frozenset[str]) -> list[str]:
    """The options of a command that a release's own parser does not know."""
    flags = [word.split("=", 1)[0] for word in words if re.match(r"--[a-z]", word)]
    return [flag for flag in flags if flag not in known]


# Figures in vLLM's log (0.33.0, vllm/v1/worker/gpu_worker.py and vllm/v1/core/kv_cache_utils.py).
_SIGNS = {
    "load-gib": r"Model loading took ([\d.]+) GiB",
    "cache-gib": r"Available KV cache memory: ([\d.]+) GiB",
    "cache-tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "start-seconds": r"init engine .* took ([\d.]+) s",
}


def figures_in_log(log: str) -> dict[str, float]:
    """The last figure of each kind in an engine's log."""
    found = {name: re.findall(pattern, log) for name, pattern in _SIGNS.items()}
    return {name: float(hits[-1].replace(",", "")) for name, hits in found.items() if hits}


def beside_plan(figures: Mapping[str, float], planned: Mapping[str, Any]) -> dict[str, float]:
    """The figures with those of `plan` for the same machine: cache in tokens, lowest and highest tokens/s at 1."""
    memory, speed = planned.get("memory") or {}, (planned.get("speed") or {}).get("expected") or []
    more = {"planned-cache-tokens": float(memory["cache_tokens"])} if memory.get("cache_tokens") else {}
    for row in speed:
        for kind in ("plain", "dflash"):
            low_high = row.get(f"{kind}_tokens_per_s") or ()
            more |= {
                f"planned-{kind}-{row['concurrency']}-{end}": at
                for end, at in zip(("low", "high"), low_high, strict=False)
            }
    return {**figures, **more}


def judged(step: Step, codes: Sequence[int | None], said: str) -> tuple[StepState, str]:
    """Whether a deployment's commands prove the step: all succeed, or the fault ends them with its explanation."""
    if None in codes:
        return "timed-out", f"a command did not end within {step.limit} s"
    if not step.fault:
        bad = next((code for code in codes if code), 0)
        return ("failed", f"exit code {bad}") if bad else ("passed", "")
    if not any(codes) and step.fault != "killed":
        return "failed", "the fault was not noticed"
    return ("passed", "") if step.error in said.lower() else ("failed", f"the explanation does not say `{step.error}`")


# Largest relative error of all logits, and of those of one position (tests/engine/test_nvfp4_awq.py).
LOADER_ERROR, LOADER_WORST = 1e-2, 4e-2


def distance(
    made: Sequence[Sequence[Sequence[float]]], wanted: Sequence[Sequence[Sequence[float]]]
) -> dict[str, float]:
    """The relative error of logits by prompt, position and token, each position less its mean."""
    errors, norms = [], []
    for got, right in zip(_centred(made), _centred(wanted), strict=True):
        errors.append(sum((x - y) ** 2 for x, y in zip(got, right, strict=True)))
        norms.append(sum(y * y for y in right))
    worst = max((error / norm) ** 0.5 for error, norm in zip(errors, norms, strict=True))
    return {"relative-error": round((sum(errors) / sum(norms)) ** 0.5, 6), "worst-position": round(worst, 6)}


def _centred(prompts: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    rows = [row for prompt in prompts for row in prompt]
    return [[value - sum(row) / len(row) for value in row] for row in rows]
