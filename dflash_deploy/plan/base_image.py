"""The base image of an engine for a machine: by processor, and by NVIDIA driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.plan.compatible import below


@dataclass(frozen=True)
class BaseImageChoice:
    """A tag, whether its use is known, the lowest driver it runs with, and the source of all that."""

    tag: str
    seen: bool
    driver: str | None
    source: str
    older: bool = False


def base_images(engine: EngineRelease) -> Iterator[tuple[str, BaseImageChoice]]:
    """All base images, each with its processor; the one for new drivers comes first."""
    for processor, image in engine.base_images.items():
        yield processor, BaseImageChoice(image.tag, image.seen, engine.driver, image.source)
        if (older := engine.older_drivers) is not None:
            yield processor, BaseImageChoice(image.tag + older.suffix, older.seen, older.driver, older.source, True)


def base_image_for(engine: EngineRelease, processor: str | None, drivers: Iterable[str]) -> BaseImageChoice:
    """The first image that all GPUs' drivers run. Without one, or known drivers: the processor's first."""
    images = [image for name, image in base_images(engine) if name == processor]
    images = images or [image for _, image in base_images(engine)][:1]
    known = [driver for driver in drivers if driver]
    running = (image for image in images if not any(image.driver and below(one, image.driver) for one in known))
    return next(running, images[0])


def driver_needed(engine: EngineRelease, tag: str) -> str | None:
    """The lowest driver that an image of this tag runs with; for an unknown image that of the release."""
    return next((image.driver for _, image in base_images(engine) if image.tag == tag), engine.driver)
