"""The conversation of the page: what was asked, and the answers as they arrive. It lives as long as the command."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from threading import Thread
from typing import Literal

from markdown_it import MarkdownIt
from PIL import Image as Pictures

from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.talk import EncodedPicture, Figures, Message, Talk, TalkChunk, user_message
from dflash_deploy.errors import BadInput
from dflash_deploy.operations.ask import LARGEST_FILE, AskedEndpoint, failed

MOST_IMAGES = 8  # pictures of one question
PREVIEW = 240  # pixels of a picture in the conversation, at most

# HTML of an answer is shown as text, and a link of another kind than http, mailto or ftp stays text. No pictures: a
# browser would fetch them from any host
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")


def preview(image: EncodedPicture) -> str:
    """A small copy of a picture, as a data URI."""
    with Pictures.open(io.BytesIO(image.content)) as opened:
        opened.thumbnail((PREVIEW, PREVIEW))
        small = io.BytesIO()
        opened.convert("RGBA").save(small, "PNG")
    return f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode('ascii')}"


@dataclass
class Turn:
    """A question and its answer so far. `rate` is in tokens per second; `problem` says why the answer is not whole."""

    question: str
    images: Sequence[EncodedPicture] = ()
    chunks: list[TalkChunk] = field(default_factory=list)
    state: Literal["running", "done", "stopped", "failed"] = "running"
    rate: float | None = None
    figures: Figures | None = None
    problem: str = ""

    @cached_property
    def previews(self) -> tuple[str, ...]:
        """The pictures of the question, small."""
        return tuple(preview(image) for image in self.images)

    @property
    def answer(self) -> str:
        """The answer so far, without the thinking before it."""
        return "".join(chunk.text for chunk in list(self.chunks) if not chunk.thinking)

    def html(self, *, steps: bool) -> str:
        """The answer so far as safe HTML. `steps`: as it was written, with the tokens of each step in one shade."""
        chunks = list(self.chunks)
        if steps:
            steps_of = groupby(chunks, key=lambda chunk: chunk.step)
            texts = ((step, html.escape("".join(chunk.text for chunk in together))) for step, together in steps_of)
            shaded = (f'<span class="step{step % 2}">{text}</span>' for step, text in texts)
            return f'<div class="steps">{"".join(shaded)}</div>'
        thinking = html.escape("".join(chunk.text for chunk in chunks if chunk.thinking))
        answer: str = _MARKDOWN.render("".join(chunk.text for chunk in chunks if not chunk.thinking))
        if not thinking:
            return answer
        shut = "" if not answer else f"<details><summary>Thinking</summary>{thinking}</details>"
        return f'<div class="thinking">{shut or thinking}</div>{answer}'


class Dialogue:
    """All turns with one endpoint, of which the last one may be running."""

    def __init__(self, asked: AskedEndpoint) -> None:
        self._asked = asked
        self.model = asked.endpoint.model
        self.redact = asked.redact
        self.plain = asked.plain
        self.turns: list[Turn] = []

    @property
    def running(self) -> bool:
        """Whether an answer is arriving."""
        return bool(self.turns) and self.turns[-1].state == "running"

    def ask(self, question: str, images: Sequence[EncodedPicture] = ()) -> None:
        """Begin an answer. Raises BadInput for an empty or too long question, and while an answer is arriving."""
        if self.running:
            raise BadInput("an answer is arriving", hint="wait for its end, or stop it")
        if not question.strip():
            raise BadInput("the question is empty", hint="write one, also with a picture")
        if len(question) > LARGEST_FILE or len(images) > MOST_IMAGES:
            raise BadInput("the question is too large", hint=f"at most {MOST_IMAGES} pictures, and 4 MiB of text")
        turn = Turn(question, tuple(images))
        messages = [*self._messages(), user_message(question, turn.images)]
        self.turns.append(turn)
        Thread(target=self._answer, args=(turn, messages), daemon=True).start()

    def stop(self) -> None:
        """End the answer that is arriving. What has arrived stays."""
        if self.running:
            self.turns[-1].state = "stopped"

    def clear(self) -> None:
        """Begin again, without what was said."""
        self.stop()
        self.turns = []

    def _messages(self) -> Iterator[Message]:
        for turn in self.turns:
            if turn.state != "failed" and turn.answer:
                yield user_message(turn.question, turn.images)
                yield {"role": "assistant", "content": turn.answer}

    def _answer(self, turn: Turn, messages: Sequence[Message]) -> None:
        """Read an answer, in a thread: a stopped one until its next chunk."""
        try:
            talk = Talk(self._asked.endpoint, messages)
            for chunk in talk.chunks():
                if turn.state != "running":
                    break
                turn.chunks.append(chunk)
                turn.rate = talk.rate
            turn.figures = talk.figures()
            if turn.state == "running":
                turn.state = "done"
        except EndpointError as problem:
            said = failed(problem, self.redact)
            self._fail(turn, f"{said.message}. {said.hint}")
        except Exception as problem:  # a defect must not leave an answer that never ends
            self._fail(turn, self.redact(f"{type(problem).__name__}: {problem}"))

    def _fail(self, turn: Turn, problem: str) -> None:
        if turn.state == "running":
            turn.problem, turn.state = problem, "failed"
