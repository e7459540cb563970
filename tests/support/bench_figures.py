"""The document of a run of `bench`, and such a run as the last one of a deployment."""

import json
from pathlib import Path
from typing import Any


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


def keep(deployment: Path, document: object) -> None:
    state = deployment / ".dflash"
    state.mkdir(exist_ok=True)
    (state / "bench.json").write_text(json.dumps(document))
