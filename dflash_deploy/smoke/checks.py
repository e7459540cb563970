"""The single checks. Each asks the endpoint one thing, looks at what came, and never takes a 200 for an answer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from dflash_deploy.catalog import ModelPair
from dflash_deploy.client import Endpoint, SpecCounters, plain_png
from dflash_deploy.smoke.verdict import judge_drafts

Status = Literal["passed", "failed", "skipped"]

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (230, 20, 20),
    "green": (20, 160, 40),
    "blue": (20, 40, 220),
    "yellow": (245, 225, 20),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
}

Routes = tuple[tuple[str, str], ...]

GUARDED: Routes = (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"))
"""Routes that must answer 401 without the key."""

LEFT_OPEN: Routes = (("GET", "/metrics"), ("GET", "/docs"), ("POST", "/invocations"), ("POST", "/tokenize"))
"""Routes that vLLM's own lock leaves open, and `dflash_deploy.serve.auth` must not."""


@dataclass(frozen=True)
class Outcome:
    """What a check saw: whether that is right, what was asked, what came, and what to do if it is wrong."""

    right: bool
    asked: str
    got: str
    hint: str = ""
    tokens_per_second: float | None = None


def served_name(endpoint: Endpoint) -> Outcome:
    """The name that clients must ask for is among the served ones."""
    names = endpoint.models()
    hint = f"clients must ask for one of these names; SERVED_MODEL_NAME in .env says {endpoint.model}"
    return Outcome(endpoint.model in names, "GET /v1/models", ", ".join(names), hint)


def closed(endpoint: Endpoint, routes: Routes) -> Outcome:
    """Requests without the key are turned away at each of these routes."""
    answers = {f"{method} {path}": endpoint.status_without_key(method, path) for method, path in routes}
    got = ", ".join(f"{route} {status}" for route, status in answers.items())
    right = set(answers.values()) == {401}
    hint = "restart the engine; if that does not help, something else than dflash_deploy.serve has started it"
    return Outcome(right, "the same routes without the key", got, hint)


def text(endpoint: Endpoint, pair: ModelPair) -> Outcome:
    """A question with one right answer."""
    question = pair.text
    answer = endpoint.chat(question.ask, max_tokens=200)
    right = question.expect.lower() in answer.text.lower()
    return Outcome(
        right, question.ask, answer.text, f"the answer must say {question.expect}: are these the target's weights?"
    )


def streaming(endpoint: Endpoint, pair: ModelPair) -> Outcome:
    """A long answer comes in pieces, with its usage at the end."""
    answer = endpoint.stream(pair.long, max_tokens=256)
    first = answer.first_token_seconds or 0.0
    got = (
        f"{answer.completion_tokens} tokens in {answer.chunks} pieces, first after {first * 1000:.0f} ms, "
        f"{answer.tokens_per_second:.1f} tokens/s, finish {answer.finish_reason or 'missing'}"
    )
    right = answer.chunks > 1 and answer.completion_tokens > 1 and answer.finish_reason in {"stop", "length"}
    hint = "something between client and engine collects the stream: look at proxies"
    return Outcome(right, pair.long, got, hint, answer.tokens_per_second)


def vision(endpoint: Endpoint, pair: ModelPair) -> Outcome:
    """The colours of images made on the spot, sizes and order by chance: an answer that was guessed will not do."""
    chance = random.SystemRandom()
    seen: list[str] = []
    wrong: list[str] = []
    for name in chance.sample(sorted(COLOURS), k=3):
        width, height = chance.randint(48, 512), chance.randint(48, 512)
        answer = endpoint.look(plain_png(COLOURS[name], width, height), pair.vision, max_tokens=200)
        seen.append(f"{name} {width}x{height}: {answer.text.strip()}")
        if name not in answer.text.lower():
            wrong.append(name)
    hint = "the picture does not reach the model: is the checkpoint one with its vision tower?"
    return Outcome(not wrong, pair.vision, "; ".join(seen), hint)


def drafts(counted: SpecCounters) -> Outcome:
    """Drafts were really made and accepted while the other checks ran."""
    verdict = judge_drafts(counted)
    right = verdict.grade in {"good", "weak"}
    return Outcome(right, "counters of /metrics before and after", f"{verdict.grade}: {verdict.says}", verdict.hint)
