"""Checks of prompts that are long, and of requests that are too long."""

from __future__ import annotations

import secrets

from dflash_deploy.checks.outcome import CheckSkipped, Outcome
from dflash_deploy.checks.under_test import EndpointUnderTest
from dflash_deploy.client import EndpointError, SpecCounters

BEYOND = 1.1
"""How far a long prompt goes beyond what the drafter was trained on."""

LONG_PROMPT = 8192
"""Tokens of a long prompt where nobody said what the drafter was trained on."""

MIB = 2**20

CUT = "the prompt is cut, or the model loses its middle: MAX_MODEL_LEN, KV_CACHE_DTYPE, rope scaling"


def long_prompt(tested: EndpointUnderTest) -> Outcome:
    """A prompt longer than the drafter ever saw is read whole; a word in its middle is found."""
    code = f"K{secrets.randbelow(9000) + 1000}"
    lines, wanted = _long_lines(tested)
    found = f"Line {len(lines) // 2}: the box holds the code {code}."
    lines[len(lines) // 2] = found
    ask = "Which code does a box hold? Answer with the code alone."
    before = _drafts(tested)
    answer = tested.endpoint.chat("\n".join([*lines, ask]), max_tokens=tested.room)
    asked = f"{len(lines)} lines with a code in the middle, {wanted} tokens"
    got = f"{answer.prompt_tokens} prompt tokens read, {answer.completion_tokens} answered in {answer.seconds:.1f} s"
    after = _drafts(tested)
    if before is not None and after is not None and (length := (after - before).acceptance_length):
        got += f", acceptance length {length:.2f}"
    read = answer.prompt_tokens >= 0.9 * wanted and answer.completion_tokens > 0
    if tested.questions.limits:
        return Outcome(read, asked, f"{got}; what it says is not judged: {tested.questions.limits}", CUT)
    return Outcome(read and code in answer.text, asked, f"{got}: {answer.text.strip()}", CUT)


def _long_lines(tested: EndpointUnderTest) -> tuple[list[str], int]:
    """Lines that make a prompt of so many tokens: beyond what the drafter was trained on, within the context.

    How many tokens a line has is measured, since each model cuts text differently.
    """
    few = tested.endpoint.chat("\n".join(map(_line, range(20))), max_tokens=1)
    more = tested.endpoint.chat("\n".join(map(_line, range(40))), max_tokens=1)
    each = (more.prompt_tokens - few.prompt_tokens) / 20
    if each <= 0:
        raise EndpointError(f"20 and 40 lines are {few.prompt_tokens} and {more.prompt_tokens} prompt tokens: cut")
    limit = _context(tested)
    wanted = int(tested.trained_context * BEYOND) if tested.trained_context else LONG_PROMPT
    if limit is not None:
        wanted = min(wanted, int((limit - tested.room) * 0.9))
    # higher numbers have more digits, so that there are rather too many tokens than too few, by a few in a hundred
    return [_line(number) for number in range(max(int(wanted / each), 1))], wanted


def _line(number: int) -> str:
    return f"Line {number}: the box is empty."


def _drafts(tested: EndpointUnderTest) -> SpecCounters | None:
    try:
        return tested.endpoint.counters()
    except EndpointError:
        return None


def oversized(tested: EndpointUnderTest) -> Outcome:
    """A prompt that the context does not hold is refused with a reason, and a huge body before it is read."""
    limit = _context(tested)
    asked = f"{limit} words and more" if limit else "more words than the context holds"
    if limit is None:
        raise CheckSkipped(asked, "nobody said how long a sequence may be")
    answers, right = [], True
    try:
        answer = tested.endpoint.chat("word and " * limit, max_tokens=8)
        answers.append(f"answered, {answer.prompt_tokens} prompt tokens")
        right = False
    except EndpointError as problem:
        answers.append(f"refused with {problem.status}")
        right = problem.status in {400, 413}
    if tested.max_body_mib is not None:
        asked += f", and a body of {tested.max_body_mib} MiB and a byte"
        status = tested.endpoint.status_of_announced(tested.max_body_mib * MIB + 1)
        answers.append("the body is waited for" if status is None else f"the body with {status}")
        right = right and status == 413
    hint = "what is too long must be refused: cut in silence it brings answers to half a question"
    return Outcome(right, asked, ", ".join(answers), hint)


def _context(tested: EndpointUnderTest) -> int | None:
    return tested.max_model_len or next((one.max_model_len for one in tested.endpoint.served()), None)
