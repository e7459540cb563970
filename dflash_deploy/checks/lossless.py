"""Are the answers with drafts the target's own? docs/explanation/lossless.md has the reasons for the limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import httpx

from dflash_deploy.checks.check import Baseline, CheckOutcome, CheckSkipped, EndpointUnderTest, check
from dflash_deploy.checks.pictures import COLOURS
from dflash_deploy.client.answers import Completion, EndpointError, expected_shape
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.client.images import image_and_question, plain_png
from dflash_deploy.client.rereading import REREADERS, Rereader, TokenRead
from dflash_deploy.serve.engines.counters import SpecCounters
from dflash_deploy.serve.settings import Settings

# Most that a token of a right answer may be behind the target's best one, as the logarithm of two probabilities.
#
# Rounding depends on how many tokens are computed together. A BF16 logit between 16 and 32 has steps of 0.125, so two
# of them may change places over some steps. Healthy engines: 0 here. buun-llama-cpp after a rejected draft: 6 to 14.
TIE = 1.0

# A request for which drafts are rejected: counting and code are easy for a drafter.
ODD = "Describe a day on the moon for a cat, in ten sentences."

LONG_ANSWER = 256
READ = 64  # tokens of an answer that is read again: after the first wrong one, most are wrong
CANDIDATES = 5  # the most likely tokens at each place that are asked for
NOT_OWN = "the answers are not the target's own"
OFF = f"set {Settings.dflash_drafter}=off, or use another engine or release"
SHOWN = 40


@dataclass(frozen=True)
class Comparison:
    """One way to find answers that drafts have changed: what was compared, and each finding as a sentence.

    `rejected` counts the draft tokens that were rejected meanwhile, `None` if no draft was counted.
    """

    compared: str
    findings: tuple[str, ...] = ()
    hint: str = OFF
    rejected: int | None = None


@dataclass(frozen=True)
class PlainToken:
    """A token of an answer without drafts, and the log-probabilities of the most likely ones at its place."""

    token: str
    likely: Mapping[str, float]

    def behind(self, token: str) -> float:
        """Return how far another token is behind the best one; of one that is not listed, how far it is at least."""
        best = max(self.likely.values())
        return best - self.likely.get(token, min(self.likely.values()))


@check("lossless")
def lossless(tested: EndpointUnderTest) -> CheckOutcome:
    """With greedy decoding, drafts change no answer: the target reads its answers again, and a baseline answers too."""
    asked = "greedy answers with drafts, and what the target prefers without"
    if tested.drafting is False:
        raise CheckSkipped(asked, f"{Settings.dflash_drafter}=off: the engine runs without speculative decoding")
    done = [_own(tested)]
    if tested.drafting is None and tested.baseline is None and done[0].rejected is None:
        raise CheckSkipped(asked, "the engine counted no draft tokens; whether it has a drafter is unknown")
    if tested.baseline is not None:
        done.append(_beside_baseline(tested, tested.baseline, asked))
    findings = [finding for one in done for finding in one.findings]
    if findings:
        hint = next(one.hint for one in done if one.findings)
        return CheckOutcome(False, asked, f"{NOT_OWN}: {'; '.join(findings)}", hint)
    rejected = [] if done[0].rejected is None else [f"{done[0].rejected} draft tokens were rejected meanwhile"]
    return CheckOutcome(True, asked, "; ".join([*(one.compared for one in done), *rejected]))


def _own(tested: EndpointUnderTest) -> Comparison:
    """Let the target read its answers again, else compare answers that are known by heart."""
    way = tested.engine.rereads if tested.engine else None
    if way is None:
        return _by_heart(tested, "this engine is not known to read them again")
    try:
        return _by_rereading(tested, REREADERS[way])
    except EndpointError as problem:
        if problem.status is None or problem.status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise
        return _by_heart(tested, f"the endpoint does not read them again ({problem.status})")


def _by_rereading(tested: EndpointUnderTest, reader: Rereader) -> Comparison:
    questions = dict.fromkeys([*(one.ask for one in tested.questions.by_heart), tested.questions.long, ODD])
    room, before = tested.within(READ), _counted(tested)
    answers = {question: reader.ask(tested.endpoint, question, max_tokens=room) for question in questions}
    drafted = _drafts_since(tested, before, [answer.completion for answer in answers.values()])
    findings, tokens = list[str](), 0
    for question, answer in answers.items():
        places = reader.read(tested.endpoint, answer)
        tokens += len(places)
        if found := first_wrong(places):
            findings.append(f"`{question[:SHOWN]}`: {found}")
    return Comparison(f"the target prefers each of {tokens} tokens", tuple(findings), rejected=drafted)


def first_wrong(places: Sequence[TokenRead]) -> str:
    """Return the first token that the target would not have written, empty if there is none."""
    worse = [(number, place) for number, place in enumerate(places, 1) if place.behind > TIE]
    if not worse:
        return ""
    number, first = worse[0]
    preferred = f"at token {number} the target prefers `{first.preferred}` by {first.behind:.1f}"
    return f"{preferred}, {len(worse)} of {len(places)} tokens are wrong"


def _by_heart(tested: EndpointUnderTest, reason: str) -> Comparison:
    room = tested.within(max(LONG_ANSWER, tested.room) if tested.must_think else LONG_ANSWER)
    before = _counted(tested)
    answers = {one.ask: tested.endpoint.chat(one.ask, max_tokens=room) for one in tested.questions.by_heart}
    drafted = _drafts_since(tested, before, list(answers.values()))
    findings = tuple(
        f"`{one.ask[:SHOWN]}`: {answers[one.ask].text.strip()[: 2 * SHOWN]}"
        for one in tested.questions.by_heart
        if [int(found) for found in re.findall(r"\d+", answers[one.ask].text)] != one.numbers
    )
    right = f"{len(answers)} answers known by heart are right; {reason}, `test --baseline` compares more"
    return Comparison(right, findings, f"`test --baseline` compares with answers without the drafter; {OFF}", drafted)


def _counted(tested: EndpointUnderTest) -> SpecCounters:
    try:
        return tested.endpoint.counters()
    except EndpointError:
        return SpecCounters()


def _drafts_since(tested: EndpointUnderTest, before: SpecCounters, answers: Sequence[Completion]) -> int | None:
    """Return how many draft tokens were rejected, by /metrics or by the answers; `None` if no draft was counted.

    Also `None` if only steps were counted, as by SGLang at first.
    """
    counted = [_counted(tested) - before]
    if not counted[0].drafts:
        counted = [answer.drafted for answer in answers if answer.drafted]
    drafts = [one.draft_tokens - one.accepted_tokens for one in counted if one.draft_tokens]
    return sum(drafts) if drafts else None


def _beside_baseline(tested: EndpointUnderTest, baseline: Baseline, asked: str) -> Comparison:
    """Compare answers, to images too, with those of an engine without drafts."""
    requests = _requests(tested)
    here = {name: tokens_of(request(tested.endpoint)) for name, request in requests.items()}
    with baseline() as plain:
        there = {name: tokens_of(request(plain)) for name, request in requests.items()}
        if plain.counters().drafts:
            raise CheckSkipped(asked, f"the baseline uses a drafter too: start it with {Settings.dflash_drafter}=off")
    found = {name: difference([one.token for one in here[name]], there[name]) for name in requests}
    findings = tuple(f"`{name[:SHOWN]}`: {what}" for name, what in found.items() if what)
    tokens = sum(map(len, there.values()))
    return Comparison(f"{len(requests)} answers, {tokens} tokens, are those without drafts", findings)


def difference(here: Sequence[str], there: Sequence[PlainToken]) -> str:
    """Return the first difference of an answer from the one without drafts, empty if it is a tie or there is none.

    The answer without drafts decides what a tie is: wrong states may make all tokens alike.
    """
    at = next((n for n, (ours, theirs) in enumerate(zip(here, there, strict=False)) if ours != theirs.token), None)
    if at is None:
        if len(here) == len(there):
            return ""
        return f"the answer ends after token {len(here)}, without drafts after token {len(there)}"
    behind = there[at].behind(here[at])
    if behind <= TIE:
        return ""
    return f"token {at + 1} is `{here[at]}` here, `{there[at].token}` without drafts ({behind:.1f} behind)"


def tokens_of(answer: Completion) -> list[PlainToken]:
    """Return the tokens of an answer with `logprobs`. llama.cpp lists no other candidates for an accepted draft."""
    with expected_shape("POST /v1/chat/completions with logprobs"):
        return [
            PlainToken(
                str(entry["token"]),
                {str(top["token"]): float(top["logprob"]) for top in entry["top_logprobs"] or [entry]},
            )
            for entry in answer.logprobs["content"]
        ]


def _requests(tested: EndpointUnderTest) -> dict[str, Callable[[Endpoint], Completion]]:
    """Return the requests that are compared with a baseline."""
    questions = tested.questions
    asks = (questions.text.ask, questions.count, *(one.ask for one in questions.by_heart), questions.long, ODD)
    requests: dict[str, Callable[[Endpoint], Completion]] = {}
    for ask in asks:
        requests[ask] = partial(_asked, content=ask, max_tokens=tested.within(LONG_ANSWER))
    for name, colour in COLOURS.items() if tested.sees else ():
        shown = image_and_question(plain_png(colour, 224, 224), questions.vision)
        requests[f"image in {name}"] = partial(_asked, content=shown, max_tokens=tested.room)
    return requests


def _asked(endpoint: Endpoint, *, content: str | Sequence[Mapping[str, object]], max_tokens: int) -> Completion:
    return endpoint.chat(content, max_tokens=max_tokens, logprobs=True, top_logprobs=CANDIDATES)
