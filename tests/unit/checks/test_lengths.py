"""Long prompts, and whether an endpoint still answers after it refused one that is too long."""

import re
from dataclasses import dataclass, field
from typing import cast

import pytest

from dflash_deploy.catalog.models import Questions
from dflash_deploy.checks.check import EndpointUnderTest
from dflash_deploy.checks.lengths import LONGEST_PROMPT, long_prompt, oversized
from dflash_deploy.client.answers import Completion, EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.serve.engines.counters import SpecCounters

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


@dataclass
class Reader:
    """A model that reads ten tokens a line, up to `loses` of them, and whose drafts get worse with the length."""

    loses: int = 10**9
    sent: list[int] = field(default_factory=list)
    drafts: SpecCounters = field(default_factory=lambda: SpecCounters(0, 0, 0))

    def counters(self) -> SpecCounters:
        return self.drafts

    def chat(self, content: str, *, max_tokens: int) -> Completion:
        tokens = 10 * content.count("box is empty") + 30
        if max_tokens > 1:
            self.sent.append(tokens)
            accepted = 300 if tokens < 10_000 else 100
            before = self.drafts
            self.drafts = SpecCounters(
                before.drafts + 100, before.draft_tokens + 700, before.accepted_tokens + accepted
            )
        code = re.search(r"K\d{4}", content)
        found = code.group() if code and tokens < self.loses else "none"
        return Completion(found, "stop", 8, 1.0, prompt_tokens=tokens)


@pytest.mark.parametrize(
    ("context", "trained", "prompts"),
    [(32_768, 4096, 2), (8192, 4096, 1), (1_000_000, 4096, 2), (None, None, 1), (65_536, None, 2)],
)
def test_a_second_long_prompt_has_half_of_a_context_that_is_much_longer(
    context: int | None, trained: int | None, prompts: int
) -> None:
    reader = Reader()
    served = context or 16_384
    tested = EndpointUnderTest(cast("Endpoint", reader), Questions(), max_model_len=served, trained_context=trained)
    outcome = long_prompt.run(tested)
    assert (outcome.right, len(reader.sent)) == (True, prompts)
    if prompts == 2:
        assert reader.sent[1] == pytest.approx(min(served // 2, LONGEST_PROMPT), rel=0.02)
        lengths = {"acceptance_length of a long prompt": 4.0, "acceptance_length of half of the context": 2.0}
        assert outcome.figures == lengths


def test_a_model_that_loses_the_middle_of_half_its_context_is_found() -> None:
    tested = EndpointUnderTest(
        cast("Endpoint", Reader(loses=12_000)), Questions(), max_model_len=32_768, trained_context=4096
    )
    outcome = long_prompt.run(tested)
    assert (outcome.right, outcome.of_model) == (False, True)
    assert outcome.got.endswith(": none")
