"""Pictures made on the spot are pictures to others too."""

import base64
import io
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dflash_deploy.client.images import DIGITS, ShapeName, data_uri, digit_png, plain_png, shape_png

CHANNEL = st.integers(0, 255)


@given(st.tuples(CHANNEL, CHANNEL, CHANNEL), st.integers(1, 300), st.integers(1, 300))
def test_pillow_sees_the_colour_and_the_size(colour: tuple[int, int, int], width: int, height: int) -> None:
    picture = Image.open(io.BytesIO(plain_png(colour, width, height)))
    picture.load()
    assert picture.size == (width, height)
    assert picture.getcolors() == [(width * height, colour)]


def test_the_address_holds_the_picture() -> None:
    png = plain_png((1, 2, 3), 4, 5)
    head, _, body = data_uri(png).partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(body) == png


@pytest.mark.parametrize("digit", range(10))
def test_a_digit_is_drawn_dot_by_dot(digit: int) -> None:
    picture = Image.open(io.BytesIO(digit_png(digit, 8))).convert("L")
    assert picture.size == (72, 88)
    seen = tuple(
        "".join("1" if picture.getpixel((8 * (x + 2) + 4, 8 * (y + 2) + 4)) == 0 else "0" for x in range(5))
        for y in range(7)
    )
    assert seen == DIGITS[digit]


def test_no_two_digits_look_the_same() -> None:
    assert len(set(DIGITS)) == 10


@pytest.mark.parametrize(("shape", "filled"), [("circle", 0.785), ("square", 1.0), ("triangle", 0.5)])
def test_a_shape_fills_its_part_of_the_square_around_it(shape: ShapeName, filled: float) -> None:
    picture = Image.open(io.BytesIO(shape_png(shape, 200))).convert("L")
    ink = picture.point(lambda value: 255 - value)
    box = ink.getbbox()
    assert box is not None
    assert all(abs(side - place) <= 1 for side, place in zip(box, (50, 50, 150, 150), strict=True))
    assert sum(1 for value in ink.tobytes() if value) / 100**2 == pytest.approx(filled, abs=0.03)


def test_every_shape_is_looked_at() -> None:
    assert set(get_args(ShapeName)) == {"circle", "square", "triangle"}
