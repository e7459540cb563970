"""Whether the counters of /metrics are those of the engine that answers."""

from dataclasses import dataclass, field
from typing import cast

import pytest

from dflash_deploy.catalog.models import Questions
from dflash_deploy.checks.check import EndpointUnderTest
from dflash_deploy.checks.drafts import metrics_count
from dflash_deploy.checks.run import run_checks
from dflash_deploy.client.answers import Completion
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.client.metrics import Metrics
from dflash_deploy.serve.engines.counters import SpecCounters

TOKENS = 8


@dataclass
class Late:
    """An engine that counts an answer only when it has begun so many others."""

    others: int
    answers: list[Completion] = field(default_factory=list)

    def chat(self, content: str, *, max_tokens: int) -> Completion:
        self.answers.append(Completion("", "stop", TOKENS, 1.0))
        return self.answers[-1]

    def metrics(self) -> Metrics:
        return Metrics("vllm", SpecCounters(), TOKENS * max(len(self.answers) - self.others, 0), 0)


@pytest.mark.parametrize(("others", "asked", "right"), [(0, 1, True), (1, 2, True), (2, 2, False)])
def test_an_answer_is_counted_before_the_next_one(others: int, asked: int, right: bool) -> None:
    engine = Late(others)
    outcome = metrics_count.run(EndpointUnderTest(cast("Endpoint", engine), Questions()))
    assert (outcome.right, len(engine.answers)) == (right, asked)
    assert f"{TOKENS} tokens answered, {TOKENS if right else 0} counted" in outcome.got


class Wrong:
    """An engine that answers every question with the same text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def chat(self, content: str, *, max_tokens: int) -> Completion:
        return Completion(self.text, "stop", TOKENS, 1.0)


@pytest.mark.parametrize(
    ("text", "unknown", "status"),
    [("Rome", True, "skipped"), ("Rome", False, "failed"), ("Paris", True, "passed"), ("", True, "failed")],
)
def test_a_wrong_answer_of_an_unknown_model_is_skipped_and_shown(text: str, unknown: bool, status: str) -> None:
    tested = EndpointUnderTest(cast("Endpoint", Wrong(text)), Questions(unknown=unknown))
    (check,) = run_checks(tested, ["text"]).checks
    assert check.status == status
    assert (status != "skipped") or "not the expected one: Rome" in check.got
