"""Plain images in six colours, questions about them, and the processor that turns them into patches."""

import random
from dataclasses import dataclass

import numpy as np
from PIL import Image
from transformers import Qwen2VLImageProcessor

from .corpus import with_thought
from .settings import MAX_PIXELS, MERGE_SIZE, MIN_PIXELS, PATCH_SIZE, TEMPORAL_PATCH_SIZE

Rgb = tuple[int, int, int]

# The exact sRGB value, and a second value with the same name; training draws from the line between the two.
COLOURS: dict[str, tuple[Rgb, ...]] = {
    "red": ((255, 0, 0), (200, 30, 30)),
    "green": ((0, 128, 0), (0, 255, 0)),
    "blue": ((0, 0, 255), (40, 60, 200)),
    "yellow": ((255, 255, 0), (240, 210, 40)),
    "black": ((0, 0, 0), (25, 25, 25)),
    "white": ((255, 255, 255), (235, 235, 235)),
}

JITTER = 16  # largest random change that is added to each channel

QUESTIONS = (
    "What colour is this image?",
    "What color is this image?",
    "What colour is this?",
    "What color is this?",
    "Which colour do you see?",
    "Which color do you see?",
    "Name the colour of this image.",
    "Name the color of this image.",
    "What is the colour of this picture?",
    "What is the color of this picture?",
    "What do you see in this image?",
    "Describe this image.",
)
ONE_WORD_QUESTIONS = (
    "What colour is this? One word.",
    "What color is this? One word.",
    "What colour is this image? Answer with one word.",
    "What color is this image? Answer with one word.",
)
# Widths and heights seen in training; the processor scales nearly all of them to 32 x 32 pixels.
SIZES = (
    *((32, 32), (64, 64), (640, 480), (48, 80), (300, 300), (100, 33), (12, 12)),
    *((7, 300), (500, 40), (400, 30), (20, 500)),
)


@dataclass(frozen=True, slots=True)
class ImageItem:
    """A question about a plain image, and its reply."""

    colour: str
    question: str
    image_first: bool
    enable_thinking: bool

    @property
    def answer(self) -> str:
        """A sentence, or only the name of the colour if the question asks for one word."""
        return f"{self.colour.capitalize()}." if self.question in ONE_WORD_QUESTIONS else f"The image is {self.colour}."

    @property
    def reply(self) -> str:
        """The full text that the assistant writes; with thinking, it includes the thought."""
        thought = f"I look at the image. It is {self.colour}."
        return with_thought(thought, self.answer) if self.enable_thinking else self.answer

    @property
    def content(self) -> list[dict[str, str]]:
        """The user's message as parts, in the format that the chat template expects."""
        image, text = {"type": "image"}, {"type": "text", "text": self.question}
        return [image, text] if self.image_first else [text, image]


def image_processor() -> Qwen2VLImageProcessor:
    """The image processor: training uses it, and it is exported with the target."""
    return Qwen2VLImageProcessor(
        size={"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        patch_size=PATCH_SIZE,
        temporal_patch_size=TEMPORAL_PATCH_SIZE,
        merge_size=MERGE_SIZE,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


def random_image_item(rng: random.Random) -> ImageItem:
    """A question drawn at random; with probability 2/3 the image is before it."""
    question = rng.choice(QUESTIONS + ONE_WORD_QUESTIONS)
    return ImageItem(rng.choice(list(COLOURS)), question, rng.random() < 2 / 3, rng.random() < 0.5)


def random_image(colour: str, rng: random.Random) -> Image.Image:
    """A plain image: with probability 1/3 the exact colour, else a similar one; half of these have JPEG noise."""
    size = rng.choice(SIZES)
    exact, other = COLOURS[colour]
    if rng.random() < 1 / 3:
        return Image.new("RGB", size, exact)
    share = rng.random()
    mixed = [round(a + share * (b - a)) + rng.randint(-JITTER, JITTER) for a, b in zip(exact, other, strict=True)]
    noise = np.random.default_rng(rng.getrandbits(32)).integers(-3, 4, size=(size[1], size[0], 3))
    pixels = np.array(mixed) + (noise if rng.random() < 0.5 else 0 * noise)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
