"""Answers while texts and pictures are asked at the same time: drafts of one request must not change another one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from threading import Lock

from dflash_deploy.checks.check import DEFAULT_MAX_NUM_SEQS, CheckOutcome, CheckSkipped, EndpointUnderTest, check
from dflash_deploy.checks.lossless import NOT_OWN, first_wrong
from dflash_deploy.checks.pictures import COLOURS
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.images import plain_png
from dflash_deploy.client.rereading import REREADERS, AnswerInTokens, Rereader
from dflash_deploy.serve.settings import Settings

# How long. llama.cpp b11549 changed one answer in 400 with four sequences, one in 20 with five.
#
# One in 5,000 with three takes longer to find.
SECONDS = 5.0

CLIENTS = 4  # requests at once for each sequence: those that wait begin as soon as another ends
MOST_CLIENTS = 32

READ = 48  # tokens of an answer
MOST_READ_AGAIN = 4  # different answers to one question that the target reads again: one that is wrong is enough
ALIKE = f"set a lower {Settings.max_num_seqs}, or {Settings.dflash_drafter}=off"


@check("mixed")
def mixed(tested: EndpointUnderTest) -> CheckOutcome:
    """Greedy answers under load, beside pictures, are the target's own: it reads again those that differ."""
    clients = min(CLIENTS * (tested.max_num_seqs or DEFAULT_MAX_NUM_SEQS), MOST_CLIENTS)
    beside = ", beside pictures" if tested.sees else ""
    asked = f"greedy answers for {SECONDS:g} s, {clients} at a time{beside}"
    way = tested.engine.rereads if tested.engine else None
    if tested.drafting is False or way is None:
        reason = f"{Settings.dflash_drafter}=off" if tested.drafting is False else "this engine reads no answer again"
        raise CheckSkipped(asked, reason)
    answers, pictures, failed = _Load(tested, REREADERS[way]).run(clients)
    findings = [finding for known in answers.values() for finding in _wrong(tested, REREADERS[way], known)]
    count = sum(len(known) for known in answers.values())
    got = f"{count} texts and {pictures} pictures answered"
    if failed:
        return CheckOutcome(False, asked, f"{got}; {failed[0]}", "read `dflash-deploy logs`")
    if findings:
        return CheckOutcome(False, asked, f"{NOT_OWN}: {'; '.join(findings)}", ALIKE)
    different = sum(len({one.answer for one in known}) for known in answers.values())
    return CheckOutcome(True, asked, f"{got}; the {different} different texts are the target's own")


class _Load:
    """Clients that ask texts and pictures in turn."""

    def __init__(self, tested: EndpointUnderTest, reader: Rereader) -> None:
        self._tested, self._reader = tested, reader
        questions = [one.ask for one in tested.questions.by_heart] or [tested.questions.text.ask]
        self._answers: dict[str, list[AnswerInTokens]] = {question: [] for question in questions}
        self._questions: Iterator[str] = cycle(questions)
        self._colours = cycle(COLOURS.values())
        self._lock = Lock()
        self._pictures, self._failed = 0, list[str]()

    def run(self, clients: int) -> tuple[dict[str, list[AnswerInTokens]], int, list[str]]:
        """The answers by question, the number of pictures that were answered, and what failed."""
        end = time.monotonic() + SECONDS
        with ThreadPoolExecutor(clients) as pool:
            running = [
                pool.submit(self._client, end, pictures=bool(n % 2 and self._tested.sees)) for n in range(clients)
            ]
            for one in running:
                one.result()
        return self._answers, self._pictures, self._failed

    def _client(self, end: float, *, pictures: bool) -> None:
        while time.monotonic() < end and not self._failed:
            with self._lock:
                question, colour = next(self._questions), next(self._colours)
            try:
                if pictures:
                    shown = plain_png(colour, 160, 160)
                    self._tested.endpoint.ask_image(shown, self._tested.questions.vision, max_tokens=self._tested.room)
                    self._pictures += 1
                else:
                    answer = self._reader.ask(self._tested.endpoint, question, max_tokens=self._tested.within(READ))
                    self._answers[question].append(answer)
            except EndpointError as problem:
                self._failed.append(str(problem))


def _wrong(tested: EndpointUnderTest, reader: Rereader, known: list[AnswerInTokens]) -> Iterator[str]:
    """What the target finds wrong in the different answers to one question, the rarest first."""
    counted: dict[tuple[int, ...], list[AnswerInTokens]] = {}
    for one in known:
        counted.setdefault(one.answer, []).append(one)
    for same in sorted(counted.values(), key=len)[:MOST_READ_AGAIN]:
        if found := first_wrong(reader.read(tested.endpoint, same[0])):
            yield f"`{same[0].completion.text.strip()[:80]}` ({len(same)} of {len(known)}): {found}"
