"""With the drafter the output is the target's own, token by token."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.bench import Prompt
from dflash_deploy.client import Endpoint, SpecCounters
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env
from tests.support.server import Server

NEAR_TIE = 0.1
"""Most that the two best log-probabilities may lie apart where a token differs: BF16 sums depend on order."""

KINDS = {"chat": 30, "thinking": 20, "image": 20, "long": 10}
"""How many prompts of each kind are compared."""


SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 40}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA, "strict": True}}
FORMED = 10
"""How many prompts are answered in that form: the grammar cuts drafts short, from step to step differently."""

SCHEDULE = "1:7,2-3:3,4-16:1"


@dataclass(frozen=True)
class Step:
    """One decoded token, and how far ahead of the second best it was."""

    token: str
    margin: float


@dataclass(frozen=True)
class Answers:
    """The tokens of each answer and the text of each one with a form, by the prompt's id; and the drafts meanwhile."""

    steps: dict[str, list[Step]]
    formed: dict[str, str]
    drafts: SpecCounters


def answered(endpoint: Endpoint, prompts: list[Prompt], *, streams: int = 1) -> Answers:
    """All prompts, over so many streams."""

    def told(prompt: Prompt) -> list[Step]:
        answer = endpoint.complete(prompt.body(endpoint.model) | {"logprobs": True, "top_logprobs": 2})
        return list(_steps(answer.logprobs["content"]))

    def formed(prompt: Prompt) -> str:
        return endpoint.complete(prompt.body(endpoint.model) | {"response_format": FORM, "max_tokens": 100}).text

    chats = [prompt for prompt in prompts if prompt.kind == "chat"][:FORMED]
    before = endpoint.counters()
    with ThreadPoolExecutor(streams) as pool:
        steps = dict(zip((prompt.id for prompt in prompts), pool.map(told, prompts), strict=True))
        texts = dict(zip((prompt.id for prompt in chats), pool.map(formed, chats), strict=True))
    return Answers(steps, texts, endpoint.counters() - before)


def _steps(content: list[dict[str, object]]) -> Iterator[Step]:
    for entry in content:
        best = sorted((float(top["logprob"]) for top in entry["top_logprobs"]), reverse=True)  # type: ignore[attr-defined]
        yield Step(str(entry["token"]), best[0] - best[1])


def differing(drafted: dict[str, list[Step]], plain: dict[str, list[Step]]) -> list[str]:
    """The prompts whose answers differ where it was no near tie."""
    found = []
    for name, expected in plain.items():
        got = drafted[name]
        if [step.token for step in got] == [step.token for step in expected]:
            continue
        at = next(
            (n for n, (a, b) in enumerate(zip(got, expected, strict=False)) if a.token != b.token),
            min(len(got), len(expected)) - 1,
        )
        margin = min(got[at].margin, expected[at].margin)
        print(f"{name}: token {at} is {got[at].token!r} drafted, {expected[at].token!r} plain, {margin:.4f} apart")
        if margin > NEAR_TIE:
            found.append(name)
    return found


@pytest.fixture(scope="module")
def chosen(prompts: list[Prompt]) -> list[Prompt]:
    picked = [prompt for kind, count in KINDS.items() for prompt in [p for p in prompts if p.kind == kind][:count]]
    assert len(picked) >= 60
    return picked


@pytest.fixture(scope="module")
def scheduled(server: Server, chosen: list[Prompt]) -> dict[int, Answers]:
    """Answers of one stream and of four, while the number of draft tokens follows their number."""
    edit_env(server.directory, DFLASH_SPEC_SCHEDULE=SCHEDULE)
    try:
        server.serve(drafting=True).close()
        # where it had its drafter before, that was not enough
        dflash("up", at=server.directory).succeeded()
        with server.connect() as endpoint:
            return {streams: answered(endpoint, chosen, streams=streams) for streams in (1, 4)}
    finally:
        edit_env(server.directory, DFLASH_SPEC_SCHEDULE="")
        dflash("up", at=server.directory).succeeded()


@pytest.fixture(scope="module")
def drafted(server: Server, chosen: list[Prompt]) -> Answers:
    with server.serve(drafting=True) as endpoint:
        return answered(endpoint, chosen)


@pytest.fixture(scope="module")
def plain(server: Server, chosen: list[Prompt]) -> Answers:
    with server.serve(drafting=False) as endpoint:
        return answered(endpoint, chosen)


def test_greedy_output_is_the_same_with_and_without_the_drafter(drafted: Answers, plain: Answers) -> None:
    assert drafted.drafts.drafts > 0
    assert plain.drafts.drafts == 0
    print(f"{len(plain.steps)} prompts compared")
    assert not differing(drafted.steps, plain.steps)


def test_under_a_schema_the_text_is_that_of_plain_decoding(drafted: Answers, plain: Answers) -> None:
    print(plain.formed)
    assert drafted.formed == plain.formed
    for text in plain.formed.values():
        assert json.loads(text).keys() == {"answer", "sure"}


def test_a_schedule_of_draft_tokens_changes_no_token(
    scheduled: dict[int, Answers], drafted: Answers, plain: Answers
) -> None:
    for streams, answers in scheduled.items():
        print(f"{streams} streams: {answers.drafts}")
        assert not differing(answers.steps, plain.steps), streams
        assert answers.formed == plain.formed
    alone, shared = (scheduled[streams].drafts.draft_tokens / scheduled[streams].drafts.drafts for streams in (1, 4))
    # what the grammar cuts off was never verified
    assert 6 < alone <= 7
    assert 1 <= shared < 3


def test_a_drafter_that_is_claimed_and_not_there_is_named(server: Server) -> None:
    """The engine runs without one, as after the test before; `.env` says that there is one."""
    server.serve(drafting=False).close()
    edit_env(server.directory, DFLASH_DRAFTER=str(asset("models/tiny/drafter")))
    ran = dflash("test", "--only", "drafts", "--json", at=server.directory)
    edit_env(server.directory, DFLASH_DRAFTER="off")
    assert ran.code is ExitCode.SMOKE_TEST
    (check,) = ran.document["data"]["checks"]
    assert "no draft was made" in check["got"]
