"""Whether the check `turns` finds conversations that are read again, and conversations that see each other."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from dflash_deploy.catalog.models import Questions
from dflash_deploy.checks.answers import turns
from dflash_deploy.checks.check import EndpointUnderTest
from dflash_deploy.client.answers import Completion
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.client.metrics import Metrics
from dflash_deploy.serve.engines.counters import SpecCounters


@dataclass
class Remembering:
    """An engine with a prefix cache, of which each answer finds a share; a token is a word.

    `mixed`: a conversation gets the code of another one. `says`: whether answers report what was cached.
    """

    share: float
    says: bool = True
    mixed: bool = False
    cached: int = 0
    prompts: list[str] = field(default_factory=list)

    def chat(self, content: str, *, max_tokens: int, messages: list[dict[str, Any]] | None = None) -> Completion:
        text = " ".join(one["content"] for one in messages) if messages else content
        # what was asked before, and begins as this
        known = max((len(one.split()) for one in self.prompts if text.startswith(one)), default=0)
        self.prompts.append(text)
        cached = int(self.share * known)
        self.cached += cached
        codes = [word.rstrip(".") for word in " ".join(self.prompts if self.mixed else [text]).split() if "K" in word]
        answer = " ".join(codes) or "Paris"
        tokens = len(text.split())
        return Completion(answer, "stop", 4, 1.0, prompt_tokens=tokens, cached_tokens=cached if self.says else None)

    def metrics(self) -> Metrics:
        return Metrics("vllm", SpecCounters(), 0, 0, 0, None, self.cached)

    def served(self) -> list[Any]:
        return []


def outcome(engine: Remembering, caching: bool | None) -> tuple[bool, str]:
    under = EndpointUnderTest(cast("Endpoint", engine), Questions(), prefix_caching=caching, max_model_len=8192)
    done = turns.run(under)
    return done.right, f"{done.got}; {done.hint}"


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize(
    ("share", "caching", "right"),
    [(1.0, True, True), (0.8, True, True), (0.0, True, False), (0.4, True, False), (0.0, None, True)],
)
def test_a_second_turn_reads_at_most_its_new_part(share: float, caching: bool | None, right: bool, says: bool) -> None:
    found, said = outcome(Remembering(share, says=says), caching)
    assert found is right
    assert "the second turn of " in said


def test_a_prefix_cache_that_is_off_is_said_and_not_asked_for() -> None:
    engine = Remembering(0.0)
    right, said = outcome(engine, caching=False)
    assert right
    assert "each turn reads its prompt again: ENABLE_PREFIX_CACHING=off" in said
    assert len(engine.prompts) == 3


def test_a_conversation_that_sees_another_one_fails() -> None:
    right, said = outcome(Remembering(1.0, mixed=True), caching=True)
    assert not right
    assert "one conversation sees another one" in said
