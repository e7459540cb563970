"""An engine that gives a scripted answer when it is asked for its configuration, and the models it is asked about."""

import json
from pathlib import Path

from dflash_deploy.operations.ask_engine import Heard
from dflash_deploy.operations.reporter import Silent
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.answer import MARK
from tests.support.box import CONFIG, DRAFTER, DRAFTS, TARGET
from tests.support.hub import Generated

TOKENIZER = json.dumps({"model": "x" * 50_000})

# The repositories of the deployment of `tests.support.box`, by name.
FILES: dict[str, dict[str, str | Generated]] = {
    "o/target": {"config.json": CONFIG, "tokenizer.json": TOKENIZER, "model.safetensors": TARGET},
    "o/drafter": {"config.json": DRAFTS, "model.safetensors": DRAFTER},
}


def answered(answer: object) -> Heard:
    """An engine that ends with this answer."""
    return Heard(0, f"INFO starts\n{MARK}{json.dumps(answer)}\n")


# Ends of an engine without an answer, and what is said of each.
SILENT = [
    (Heard(None, ""), "did not make its configuration within 60 s"),
    (Heard(-11, "Fatal Python error"), "was ended by signal 11"),
    (Heard(1, "No module named dflash_deploy.serve.ask"), "ended with code 1"),
    (Heard(0, f"{MARK}not JSON"), "ended without an answer that can be read"),
]


class Engine:
    """In place of a process: what it was asked with, and the answer that it writes."""

    def __init__(self) -> None:
        self.heard = answered({"decided": {"attention_backend": "CPU_ATTN"}})
        self.files: dict[str, dict[str, str]] = {}
        self.places: tuple[Path, ...] = ()
        self.asked = 0

    def __call__(self, plan: Plan, target: Path, drafter: Path, *, seconds: float) -> Heard:
        self.asked += 1
        self.places = (target, drafter)
        self.files = {
            place.name: {file.name: file.read_text() for file in place.iterdir() if file.is_file()}
            for place in self.places
        }
        return self.heard


class Notes(Silent):
    """Keeps what the operation says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


class Fetching(Exception):
    """The download of weights would begin now."""
