"""The document of a run of `bench`, and such a run as the last one of a deployment."""

import json
from pathlib import Path
from typing import Any

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.operations.figures import DESCRIBING
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_of


def figures(*, drafters: tuple[bool, ...] = (True, False), **measured: object) -> dict[str, Any]:
    """A document of `bench` on the tiny pair: 2 ms per token and client with drafts, 5 ms without."""
    of = {"profile": "cpu", "pair": "tiny-gguf", "engine": "llama.cpp b11549", "at": "2026-11-22 20:00 UTC"}
    conditions: dict[str, Any] = {**of, "settings": {"MAX_NUM_SEQS": "4"}, **measured}
    return {
        "schema": 1,
        "command": "bench",
        "data": {
            "measured": conditions,
            "rows": [
                {
                    "workload": "own",
                    "concurrency": clients,
                    "drafter": drafter,
                    "mtp": False,
                    "requests": 40,
                    "duration_s": 40 / clients * (0.02 * clients + 149 * 0.001 * each),
                    "input_tokens": 40 * 60,
                    "output_tokens": 40 * 150,
                    "ttft_ms": {"mean": 20.0 * clients},
                    "tpot_ms": {"mean": each},
                    "acceptance_length": 6.0 if drafter else None,
                }
                for drafter in drafters
                for clients, each in ((1, 2.0 if drafter else 5.0), (4, 6.0 if drafter else 5.5))
            ],
        },
    }


def settings_of(plan: Plan) -> dict[str, str]:
    """The settings of a plan as `bench` writes them."""
    return {field.name: plan.values[field.name] for field in DESCRIBING if plan.values.get(field.name)}


def keep(deployment: Path, document: object) -> None:
    state = deployment / ".dflash"
    state.mkdir(exist_ok=True)
    (state / "bench.json").write_text(json.dumps(document))


def keep_baseline(directory: Path, **measured: object) -> None:
    """The last run of `bench` measured the models and the engine of a deployment, without drafts too."""
    plan = plan_of(Deployment(directory))
    engine = f"{plan.engine.engine} {plan.engine_version}"
    own: dict[str, Any] = {
        "profile": plan.profile.name,
        "pair": plan.pair.name,
        "engine": engine,
        "settings": settings_of(plan),
    }
    keep(directory, figures(**{**own, **measured}))
