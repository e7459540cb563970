"""Checks of vision, with randomly generated images, so that answers cannot be guessed or known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import get_args

from dflash_deploy.checks.check import CheckOutcome, CheckSkipped, EndpointUnderTest, check
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.images import ShapeName, digit_png, plain_png, shape_png

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (230, 20, 20),
    "green": (20, 160, 40),
    "blue": (20, 40, 220),
    "yellow": (245, 225, 20),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
}

DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

NARROWEST = 1.5  # the longest side of a plain image, divided by the other one

# A description, the words of which one must be in the answer, and the PNG.
ShownPicture = tuple[str, tuple[str, ...], bytes]


@check("vision", quick=True)
def colour(tested: EndpointUnderTest) -> CheckOutcome:
    """Name the colors of three plain images, with random sizes and order."""
    chance = random.SystemRandom()
    pictures: list[ShownPicture] = []
    for name in chance.sample(sorted(COLOURS), k=3):
        width = chance.randint(48, 512)
        # llama.cpp pads a narrow image with black, and a small model then names that color
        height = chance.randint(max(48, round(width / NARROWEST)), min(512, round(width * NARROWEST)))
        pictures.append((f"{name} {width}x{height}", (name,), plain_png(COLOURS[name], width, height)))
    return _looked(tested, tested.questions.vision, pictures)


@check("digit")
def digit(tested: EndpointUnderTest) -> CheckOutcome:
    """Read two large digits."""
    ask = "Which digit is in this image? Answer with only the digit."
    tested.needs_general(ask)
    chance = random.SystemRandom()
    drawn = chance.sample(range(10), k=2)
    return _looked(
        tested,
        ask,
        [
            (str(number), (str(number), DIGIT_NAMES[number]), digit_png(number, chance.randint(16, 40)))
            for number in drawn
        ],
    )


@check("shape")
def shape(tested: EndpointUnderTest) -> CheckOutcome:
    """Name a circle, a square and a triangle."""
    ask = "Which shape is in this image: a circle, a square or a triangle? Answer with one word."
    tested.needs_general(ask)
    chance = random.SystemRandom()
    drawn = chance.sample(get_args(ShapeName), k=3)
    return _looked(tested, ask, [(name, (name,), shape_png(name, chance.randint(200, 400))) for name in drawn])


def _looked(tested: EndpointUnderTest, ask: str, pictures: Sequence[ShownPicture]) -> CheckOutcome:
    """Check that each image is recognized. If one is not, the prompt tokens show whether the image was dropped."""
    if tested.sees is False:
        raise CheckSkipped(ask, "the target, as it is deployed, does not accept images")
    seen, wrong, tokens = list[str](), list[str](), 0
    for shown, words, png in pictures:
        try:
            answer = tested.endpoint.ask_image(png, ask, max_tokens=tested.room)
        except EndpointError as problem:
            # llama.cpp without a projector answers 500
            if tested.sees is None and problem.status in {400, 500} and "image" in str(problem):
                raise CheckSkipped(ask, f"the model may not accept images: {problem}") from None
            raise
        seen.append(f"{shown}: {answer.text.strip()}")
        tokens = answer.prompt_tokens
        if not any(word in answer.text.lower() for word in words):
            wrong.append(shown)
    got = "; ".join(seen)
    if not wrong:
        return CheckOutcome(True, ask, got)
    bare = tested.endpoint.chat(ask, max_tokens=1).prompt_tokens
    if tokens <= bare:
        got = f"{got}; {tokens} prompt tokens with an image, {bare} without"
        return CheckOutcome(False, ask, got, "the image is dropped before the engine: check proxies in between")
    hint = "the image does not reach the model: check that the checkpoint includes the vision tower"
    return CheckOutcome(False, ask, got, hint, of_model=True)
