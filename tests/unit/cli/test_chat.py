"""The lines at the bottom of `chat`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dflash_deploy.cli.chat import ENDINGS, Conversation
from dflash_deploy.client.images import plain_png

FIGURES = "7 tokens, 461 tokens/s, first token after 0.07 s, acceptance length 2.00, without drafts 2020 tokens/s"


@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_the_figures_of_an_answer_leave_room_for_the_keys(width: int) -> None:
    # none of what the conversation needs of its endpoint is asked for here
    bar = Conversation(cast(Any, SimpleNamespace()), last=FIGURES).bar(width)
    assert max(map(len, bar.splitlines())) < width
    assert " ".join(bar.split()) == f"{FIGURES} F2: steps not shaded Alt-Enter: new line"


@pytest.mark.parametrize("typed", ["{}", '"{}"', "'{}'", " {} "])
def test_a_picture_is_found_by_what_a_terminal_writes_when_it_is_dropped(typed: str, tmp_path: Path) -> None:
    file = tmp_path / "my photo.png"
    file.write_bytes(plain_png((255, 0, 0), 8, 8))
    conversation = Conversation(cast(Any, SimpleNamespace()))
    conversation.add_image(typed.format(file).strip())
    conversation.add_image(str(file).replace(" ", "\\ "))
    assert len(conversation.images) == 2


@pytest.mark.parametrize("word", ENDINGS)
def test_the_words_of_other_programs_end_a_chat_too(word: str) -> None:
    session = SimpleNamespace(prompt=lambda _: f" {word} ")
    assert not Conversation(cast(Any, SimpleNamespace()))._turn(cast(Any, session))
    assert word in Conversation(cast(Any, SimpleNamespace())).help("") or word != "/quit"


def test_pictures_that_go_along_are_counted() -> None:
    conversation = Conversation(cast(Any, SimpleNamespace()), images=cast(Any, ["one", "two"]))
    assert conversation.bar(80) == " 2 pictures  F2: steps not shaded  Alt-Enter: new line"
