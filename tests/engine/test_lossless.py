"""With the drafter the output is the target's own, token by token."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.bench import Prompt
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env
from tests.support.server import Server

NEAR_TIE = 0.1
"""Most that the two best log-probabilities may lie apart where a token differs: BF16 sums depend on order."""

KINDS = {"chat": 30, "thinking": 20, "image": 20, "long": 10}
"""How many prompts of each kind are compared."""


@dataclass(frozen=True)
class Step:
    """One decoded token, and how far ahead of the second best it was."""

    token: str
    margin: float


def steps(server: Server, prompts: list[Prompt], *, drafting: bool) -> dict[str, list[Step]]:
    """The tokens of each answer, by the prompt's id."""
    answers = {}
    with server.serve(drafting=drafting) as endpoint:
        for prompt in prompts:
            answer = endpoint.complete(prompt.body(endpoint.model) | {"logprobs": True, "top_logprobs": 2})
            answers[prompt.id] = list(_steps(answer.logprobs["content"]))
        made = endpoint.counters().drafts
        assert (made > 0) is drafting
    return answers


def _steps(content: list[dict[str, object]]) -> Iterator[Step]:
    for entry in content:
        best = sorted((float(top["logprob"]) for top in entry["top_logprobs"]), reverse=True)  # type: ignore[attr-defined]
        yield Step(str(entry["token"]), best[0] - best[1])


@pytest.fixture(scope="module")
def chosen(prompts: list[Prompt]) -> list[Prompt]:
    picked = [prompt for kind, count in KINDS.items() for prompt in [p for p in prompts if p.kind == kind][:count]]
    assert len(picked) >= 60
    return picked


def test_greedy_output_is_the_same_with_and_without_the_drafter(server: Server, chosen: list[Prompt]) -> None:
    drafted = steps(server, chosen, drafting=True)
    plain = steps(server, chosen, drafting=False)
    differing = []
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
            differing.append(name)
    print(f"{len(plain)} prompts compared")
    assert not differing


def test_a_drafter_that_is_claimed_and_not_there_is_named(server: Server) -> None:
    """The engine runs without one, as after the test before; `.env` says that there is one."""
    server.serve(drafting=False).close()
    edit_env(server.directory, DFLASH_DRAFTER=str(asset("models/tiny/drafter")))
    ran = dflash("test", "--only", "drafts", "--json", at=server.directory)
    edit_env(server.directory, DFLASH_DRAFTER="off")
    assert ran.code is ExitCode.SMOKE_TEST
    (check,) = ran.document["data"]["checks"]
    assert "no draft was made" in check["got"]
