"""The lines at the bottom of `chat`."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dflash_deploy.cli.chat import Conversation

FIGURES = "7 tokens, 461 tokens/s, first token after 0.07 s, acceptance length 2.00, without drafts 2020 tokens/s"


@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_the_figures_of_an_answer_leave_room_for_the_keys(width: int) -> None:
    # none of what the conversation needs of its endpoint is asked for here
    bar = Conversation(cast(Any, SimpleNamespace()), last=FIGURES).bar(width)
    assert max(map(len, bar.splitlines())) < width
    assert " ".join(bar.split()) == f"{FIGURES} F2: steps not shaded Alt-Enter: new line"


def test_pictures_that_go_along_are_counted() -> None:
    conversation = Conversation(cast(Any, SimpleNamespace()), images=cast(Any, ["one", "two"]))
    assert conversation.bar(80) == " 2 pictures  F2: steps not shaded  Alt-Enter: new line"
