"""Which of an engine's base images a machine gets: by processor, and by what its NVIDIA driver runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dflash_deploy.catalog import EngineRelease
from dflash_deploy.plan.compatible import below


@dataclass(frozen=True)
class BaseImageChoice:
    """A tag, whether somebody was seen using it, the lowest driver it runs with, and where all that was read."""

    tag: str
    seen: bool
    driver: str | None
    source: str
    older: bool = False


def base_images(engine: EngineRelease) -> Iterator[tuple[str, BaseImageChoice]]:
    """All there are, each with its processor; the one for new drivers comes first."""
    for processor, image in engine.base_images.items():
        yield processor, BaseImageChoice(image.tag, image.seen, engine.driver, image.source)
        if (older := engine.older_drivers) is not None:
            yield processor, BaseImageChoice(image.tag + older.suffix, older.seen, older.driver, older.source, True)


def base_image_for(engine: EngineRelease, processor: str | None, drivers: Iterable[str]) -> BaseImageChoice:
    """The first that the drivers of all GPUs run; where none is, or no driver is known, the first for the processor."""
    images = [image for name, image in base_images(engine) if name == processor]
    images = images or [image for _, image in base_images(engine)][:1]
    known = [driver for driver in drivers if driver]
    running = (image for image in images if not any(image.driver and below(one, image.driver) for one in known))
    return next(running, images[0])


def driver_needed(engine: EngineRelease, tag: str) -> str | None:
    """The lowest driver that an image of this tag runs with; for an image that is not known, the release's own."""
    return next((image.driver for _, image in base_images(engine) if image.tag == tag), engine.driver)
