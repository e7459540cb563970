"""The data sets that z-lab measures on, by name: their first rows, from the hub's dataset viewer.

Which repository and split each name means: dflash/benchmark.py of z-lab's dflash 0.1.0. The viewer's route /rows, at
most 100 at a time: https://huggingface.co/docs/dataset-viewer/quick_start; it spares a reader of Parquet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from dflash_deploy.errors import HubUnreachable

VIEWER = "https://datasets-server.huggingface.co"

ROWS = 32
"""Prompts that are taken of each."""

TIMEOUT = 30.0

_STEPS = "{question}\nWork it out step by step and end with the result in \\boxed{{}}."
_CODE = "Complete this function so that its tests pass. Answer with the whole function.\n```python\n{question}\n```"


@dataclass(frozen=True)
class Dataset:
    """Where the rows are, which of their fields asks the question, and the words around it, which are not z-lab's."""

    repo: str
    config: str
    split: str
    field: str
    words: str = "{question}"

    def question(self, row: Mapping[str, object]) -> str:
        """The prompt of one row; of a conversation its first turn."""
        asked = row[self.field]
        return self.words.format(question=asked[0] if isinstance(asked, list) else asked)


DATASETS = {
    "gsm8k": Dataset("openai/gsm8k", "main", "test", "question", _STEPS),
    "math500": Dataset("HuggingFaceH4/MATH-500", "default", "test", "problem", _STEPS),
    "humaneval": Dataset("openai/openai_humaneval", "openai_humaneval", "test", "prompt", _CODE),
    "mbpp": Dataset("google-research-datasets/mbpp", "sanitized", "test", "prompt"),
    "mt-bench": Dataset("HuggingFaceH4/mt_bench_prompts", "default", "train", "prompt"),
}


def fetch_questions(name: str, *, viewer: str = VIEWER) -> list[str]:
    """The prompts of a data set. Raises HubUnreachable where they do not come."""
    dataset = DATASETS[name]
    asked: dict[str, str | int] = {
        "dataset": dataset.repo,
        "config": dataset.config,
        "split": dataset.split,
        "offset": 0,
        "length": ROWS,
    }
    try:
        response = httpx.get(f"{viewer}/rows", params=asked, timeout=TIMEOUT, follow_redirects=True)
        response.raise_for_status()
        questions = [dataset.question(entry["row"]) for entry in response.json()["rows"]]
        if questions:
            return questions
        said = "it has no rows"
    except httpx.HTTPError as problem:
        said = str(problem) or type(problem).__name__
    except (ValueError, KeyError, TypeError, IndexError) as problem:
        said = f"its answer has another shape: {type(problem).__name__}: {problem}"
    raise HubUnreachable(
        f"{name} ({dataset.repo}) does not come from {viewer}: {said}",
        hint="bring the prompts as a file: --prompts FILE.jsonl; or take a packaged workload, which needs no network",
    )
