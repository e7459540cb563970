"""Checks of long prompts, and of requests that are too long."""

from __future__ import annotations

import re
import secrets

from dflash_deploy.checks.check import CheckOutcome, CheckSkipped, EndpointUnderTest, check
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.serve.engines.counters import SpecCounters
from dflash_deploy.serve.settings import Settings

BEYOND = 1.1  # length of a long prompt, as a multiple of the drafter's trained context
LONG_PROMPT = 8192  # tokens of a long prompt if the drafter's trained context is unknown

# Tokens of the longest prompt: reading more takes minutes; how many times as long as the first a second one is.
LONGEST_PROMPT, LONGER = 65_536, 1.5

MIB = 2**20

CUT = (
    "the prompt is cut, or the model loses its middle: "
    f"check {Settings.max_model_len}, {Settings.kv_cache_dtype} and rope scaling"
)


@check("long")
def long_prompt(tested: EndpointUnderTest) -> CheckOutcome:
    """The model reads a prompt longer than the drafter's trained context, and one of half its own context.

    It finds a word in the middle of each. The longer one is left out if both would have about the same length.
    """
    first = _read_long(tested, int(tested.trained_context * BEYOND) if tested.trained_context else LONG_PROMPT)
    half = min((_context(tested) or 0) // 2, LONGEST_PROMPT)
    much_longer = half >= LONGER * first.figures["prompt"]
    reads = [first, _read_long(tested, half)] if first.right and much_longer else [first]
    lengths = zip(("a long prompt", "half of the context"), (one.figures["length"] for one in reads), strict=False)
    return CheckOutcome(
        all(one.right for one in reads),
        "; ".join(one.asked for one in reads),
        "; ".join(one.got for one in reads),
        CUT,
        {f"acceptance_length of {name}": length for name, length in lengths if length},
        reads[-1].of_model,
    )


def _read_long(tested: EndpointUnderTest, wanted: int) -> CheckOutcome:
    """One long prompt. `figures` have the tokens of its `prompt`, and the acceptance `length`, 0 if it is unknown."""
    code = f"K{secrets.randbelow(9000) + 1000}"
    lines, wanted = long_lines(tested, wanted)
    lines[len(lines) // 2] = f"Line {len(lines) // 2}: the box holds the code {code}."
    ask = "Which code does a box hold? Answer with only the code."
    before = _drafts(tested)
    answer = tested.endpoint.chat("\n".join([*lines, ask]), max_tokens=tested.room)
    after = _drafts(tested)
    asked = f"{len(lines)} lines with a code in the middle, {wanted} tokens"
    got = f"{answer.prompt_tokens} prompt tokens read, {answer.completion_tokens} answered in {answer.seconds:.1f} s"
    length = (after - before).acceptance_length if before is not None and after is not None else None
    got += f", acceptance length {length:.2f}" if length else ""
    figures = {"prompt": float(answer.prompt_tokens), "length": round(length or 0.0, 3)}
    read = answer.prompt_tokens >= 0.9 * wanted and answer.completion_tokens > 0
    if tested.questions.limits:
        return CheckOutcome(read, asked, f"{got}; the text is not checked: {tested.questions.limits}", CUT, figures)
    return CheckOutcome(read and code in answer.text, asked, f"{got}: {answer.text.strip()}", CUT, figures, read)


def long_lines(tested: EndpointUnderTest, wanted: int) -> tuple[list[str], int]:
    """Return lines of a long prompt and their tokens: `wanted`, or as many as fit the context.

    The tokens per line are measured, since tokenizers differ.
    """
    few = tested.endpoint.chat("\n".join(map(_line, range(20))), max_tokens=1)
    more = tested.endpoint.chat("\n".join(map(_line, range(40))), max_tokens=1)
    each = (more.prompt_tokens - few.prompt_tokens) / 20
    if each <= 0:
        raise EndpointError(
            f"prompts are cut: 20 and 40 lines have {few.prompt_tokens} and {more.prompt_tokens} tokens"
        )
    limit = _context(tested)
    if limit is not None:
        wanted = min(wanted, int((limit - tested.room) * 0.9))
    # higher numbers have more digits, so there are rather a few percent too many tokens than too few
    return [_line(number) for number in range(max(int(wanted / each), 1))], wanted


def _line(number: int) -> str:
    return f"Line {number}: the box is empty."


def _drafts(tested: EndpointUnderTest) -> SpecCounters | None:
    try:
        return tested.endpoint.counters()
    except EndpointError:
        return None


@check("size")
def oversized(tested: EndpointUnderTest) -> CheckOutcome:
    """A prompt beyond the context is refused with both lengths, its conversation continues, a huge body is not read."""
    limit = _context(tested)
    asked = f"more than {limit} words" if limit else "a prompt beyond the context"
    if limit is None:
        raise CheckSkipped(asked, "the context length is unknown")
    answers, right = [], True
    ask = tested.questions.text.ask
    history = [_user(ask), {"role": "assistant", "content": tested.endpoint.chat(ask, max_tokens=8).text or "Yes."}]
    try:
        answer = tested.endpoint.chat("", max_tokens=8, messages=[*history, _user("word and " * limit)])
        answers.append(f"answered, {answer.prompt_tokens} prompt tokens")
        right = False
    except EndpointError as problem:
        answers.append(f"refused with {problem.status}")
        right = problem.status in {400, 413}
        if tested.locked and not _names_both(str(problem), limit):
            answers.append(f"without both lengths: {problem}")
            right = False
    try:
        tested.endpoint.chat("", max_tokens=8, messages=[*history, _user(ask)])
    except EndpointError as problem:
        answers.append(f"the next question has no answer: {problem}")
        right = False
    if tested.max_body_mib is not None:
        asked += f", and a body of {tested.max_body_mib} MiB plus 1 byte"
        status = tested.endpoint.status_of_announced(tested.max_body_mib * MIB + 1)
        answers.append("the server waits for the body" if status is None else f"the body with {status}")
        right = right and status == 413
    hint = "requests that are too long must be refused: a silently cut prompt gives wrong answers"
    return CheckOutcome(right, asked, ", ".join(answers), hint)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _names_both(refusal: str, limit: int) -> bool:
    """Return whether a refusal has the context's length, and a longer one."""
    numbers = {int(found.replace(",", "")) for found in re.findall(r"\d[\d,]{0,15}", refusal)}
    return limit in numbers and max(numbers) > limit


def _context(tested: EndpointUnderTest) -> int | None:
    return tested.max_model_len or next((one.max_model_len for one in tested.endpoint.served()), None)
