"""The data sets of z-lab's measurements, by name: their first rows, from the dataset viewer of the Hugging Face Hub.

Repositories and splits are those of dflash/benchmark.py in z-lab's dflash 0.1.0. The viewer's route /rows gives at most
100 rows at a time (https://huggingface.co/docs/dataset-viewer/quick_start), without a reader for Parquet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from dflash_deploy.errors import HubUnreachable
from dflash_deploy.intake import Invalid
from dflash_deploy.intake.answers import fetch_answer, new_client

VIEWER = "https://datasets-server.huggingface.co"

ROWS = 32
"""Prompts from each data set."""

TIMEOUT = 30.0

_STEPS = "{question}\nWork it out step by step and end with the result in \\boxed{{}}."
_CODE = "Complete this function so that its tests pass. Answer with the whole function.\n```python\n{question}\n```"


@dataclass(frozen=True)
class Dataset:
    """The place of the rows, the field with the question, and the words around it, which are not z-lab's."""

    repo: str
    config: str
    split: str
    field: str
    words: str = "{question}"

    def question(self, row: Mapping[str, object]) -> str:
        """The prompt of one row; for a conversation its first turn."""
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
    """The prompts of a data set. Raises HubUnreachable if they cannot be downloaded."""
    dataset = DATASETS[name]
    asked: dict[str, str | int] = {
        "dataset": dataset.repo,
        "config": dataset.config,
        "split": dataset.split,
        "offset": 0,
        "length": ROWS,
    }
    try:
        with new_client(timeout=TIMEOUT) as client:
            request = client.build_request("GET", f"{viewer}/rows", params=asked)
            answer = fetch_answer(client, request, seconds=2 * TIMEOUT, redirects=True)
        if not answer.succeeded:
            raise Invalid(f"has the status {answer.status}")
        questions = [dataset.question(entry["row"]) for entry in answer.json()["rows"]]
        if questions:
            return questions
        said = "it has no rows"
    except httpx.HTTPError as problem:
        said = str(problem) or type(problem).__name__
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as problem:
        said = f"unexpected answer: {type(problem).__name__}: {str(problem)[:200]}"
    raise HubUnreachable(
        f"{name} ({dataset.repo}) cannot be downloaded from {viewer}: {said}",
        hint="use your own file of prompts (--prompts FILE.jsonl), or a packaged workload, which needs no network",
    )
