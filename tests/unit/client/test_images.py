"""Pictures made on the spot are pictures to others too."""

import base64
import io

from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dflash_deploy.client.images import data_uri, plain_png

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
