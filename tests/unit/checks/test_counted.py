"""Whether the counters of /metrics are those of the engine that answers."""

from dataclasses import dataclass, field
from typing import cast

import pytest

from dflash_deploy.catalog.models import Questions
from dflash_deploy.checks.check import EndpointUnderTest
from dflash_deploy.checks.drafts import metrics_count
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
