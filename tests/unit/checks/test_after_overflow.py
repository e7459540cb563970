"""Whether an endpoint still answers after it refused a prompt that is too long."""

from dataclasses import dataclass
from typing import cast

import pytest

from dflash_deploy.catalog.models import Questions
from dflash_deploy.checks.check import EndpointUnderTest
from dflash_deploy.checks.lengths import oversized
from dflash_deploy.client.answers import Completion, EndpointError
from dflash_deploy.client.endpoint import Endpoint

LIMIT = 2048


@dataclass
class Overflowed:
    """An engine that refuses what is too long, and with `broken` everything after it."""

    broken: bool
    refused: bool = False

    def chat(self, content: str, *, max_tokens: int) -> Completion:
        if len(content.split()) > LIMIT:
            self.refused = True
            raise EndpointError("too long", status=400)
        if self.refused and self.broken:
            raise EndpointError("no slot is free", status=503)
        return Completion("Paris", "stop", max_tokens, 1.0)


@pytest.mark.parametrize("broken", [False, True])
def test_a_question_after_the_refusal_must_be_answered(broken: bool) -> None:
    engine = Overflowed(broken)
    outcome = oversized.run(EndpointUnderTest(cast("Endpoint", engine), Questions(), max_model_len=LIMIT))
    assert engine.refused
    assert outcome.right is not broken
    after = ", the next question has no answer: no slot is free" if broken else ""
    assert outcome.got == f"refused with 400{after}"
