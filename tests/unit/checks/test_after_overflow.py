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
CLEAR = f"POST answered 400: request (2417 tokens) exceeds the available context size ({LIMIT} tokens)"


@dataclass
class Overflowed:
    """An engine that refuses what is too long in these words, and with `broken` everything after it."""

    broken: bool
    says: str = CLEAR
    refused: bool = False

    def chat(self, content: str, *, max_tokens: int, messages: list[dict[str, str]] | None = None) -> Completion:
        if messages and len(messages[-1]["content"].split()) > LIMIT:
            self.refused = True
            raise EndpointError(self.says, status=400)
        if self.refused:
            # the conversation continues
            assert messages
            assert [one["role"] for one in messages] == ["user", "assistant", "user"]
            if self.broken:
                raise EndpointError("no slot is free", status=503)
        return Completion("Paris", "stop", max_tokens, 1.0)


@pytest.mark.parametrize("broken", [False, True])
def test_the_conversation_continues_after_the_refusal(broken: bool) -> None:
    engine = Overflowed(broken)
    outcome = oversized.run(EndpointUnderTest(cast("Endpoint", engine), Questions(), max_model_len=LIMIT))
    assert engine.refused
    assert outcome.right is not broken
    after = ", the next question has no answer: no slot is free" if broken else ""
    assert outcome.got == f"refused with 400{after}"


@pytest.mark.parametrize(
    ("says", "right"), [(CLEAR, True), ("too long", False), (f"the context has {LIMIT} tokens", False)]
)
def test_a_deployment_says_both_lengths(says: str, right: bool) -> None:
    endpoint = cast("Endpoint", Overflowed(broken=False, says=says))
    assert oversized.run(EndpointUnderTest(endpoint, Questions(), locked=True, max_model_len=LIMIT)).right is right
