"""Engine releases: what they run on, what they load, what changed, what is broken in them."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dflash_deploy.catalog.hardware import Capability
from dflash_deploy.catalog.schema import Architecture, Entry, Evidenced, Quantisation
from dflash_deploy.serve.engines import ENGINES, Engine


def _known_engine(name: str) -> str:
    if name not in ENGINES:
        raise ValueError(f"`{name}` is not an engine: expected one of {', '.join(ENGINES)}")
    return name


EngineName = Annotated[str, AfterValidator(_known_engine)]
"""The engine's command line. AEON's images hold vLLM; the buun fork of llama.cpp has arguments of its own."""


class BaseImage(Entry):
    """What the project's image is built on, for one processor architecture."""

    tag: str
    seen: Annotated[bool, Field(description="whether somebody was seen using it, or it is only the expected name")]
    source: str = ""


class OlderDrivers(Entry):
    """The same image built with an earlier CUDA, for drivers that are too old for the first one."""

    suffix: Annotated[str, Field(description="what its tag has behind that of the first")]
    driver: Annotated[str, Field(description="lowest NVIDIA driver of this one")]
    seen: Annotated[bool, Field(description="whether somebody was seen using it, or it is only the expected name")]
    source: str


class Backend(Entry):
    """An attention backend as this release has it, on a range of GPUs. The first entry that fits a GPU counts."""

    name: str
    capabilities: Annotated[tuple[Capability, Capability], Field(description="lowest and highest that it runs on")]
    drafts: Annotated[bool, Field(description="it can attend non-causally, which a DFlash drafter needs")]
    fp8_kv: Annotated[bool, Field(description="it reads an FP8 KV cache there")] = False
    fp8_kv_most_head_dim: Annotated[int | None, Field(description="largest head that it reads from FP8")] = None
    source: str


class Renamed(Entry):
    """An argument or variable that people still copy, and what became of it."""

    old: str
    new: Annotated[str, Field(description="what to write instead; empty where it has no successor")] = ""
    since: Annotated[str, Field(description="first version in which the old one is gone or without effect")]
    effect: Annotated[
        Literal["refused", "ignored"], Field(description="what the engine does with the old one from then on")
    ]
    source: str


class Bug(Entry):
    """A known defect of this release."""

    what: str
    until: Annotated[str, Field(description="version that mends it; empty while it is open")] = ""
    workaround: str
    source: str


class Converter(Entry):
    """An image whose entry point takes llama.cpp's `--convert` and `--quantize`, and what drafters it writes."""

    image: str
    architecture: Annotated[
        Literal["dflash", "dflash-draft"], Field(description="`general.architecture` of a drafter that it writes")
    ]
    seen: Annotated[bool, Field(description="whether somebody was seen using it, or it is only the expected name")]
    source: str


class EngineRelease(Entry):
    """One release of an engine."""

    name: str
    title: str
    engine: EngineName
    version: str
    released: date | None = None
    evidence: Evidenced
    cpu: Annotated[bool, Field(description="it runs on the processor, without a GPU")] = False
    image: Annotated[str, Field(description="tag of the project's image for it")]
    base_images: dict[Architecture, BaseImage]
    entry_point: Annotated[
        Literal["arguments", "environment", "modes", "shell"],
        Field(
            description="what the base image's own entry point takes: arguments, environment variables, a mode word, "
            "or nothing at all (it is a shell). The project's image puts its own in front of all four"
        ),
    ] = "arguments"
    capabilities: Annotated[
        list[Capability], Field(description="GPUs that its kernels were built for; empty: any")
    ] = []
    driver: Annotated[str | None, Field(description="lowest NVIDIA driver")] = None
    older_drivers: OlderDrivers | None = None
    loads: Annotated[
        dict[Quantisation, Capability], Field(description="formats it loads, each with the lowest capability")
    ]
    unproven: Annotated[
        list[Quantisation], Field(description="forms among them that nobody is known to have loaded with it on a GPU")
    ] = []
    drafters: Annotated[list[str], Field(description="drafter architectures that it knows")]
    abilities: Annotated[
        list[
            Literal[
                "drafter-backend",
                "drafter-kv-dtype",
                "sliding-drafters",
                "mixed-drafters",
                "clamps-draft-slots",
                "prefix-cache-sound",
                "drafts-with-images",
            ]
        ],
        Field(description="what this release can do that others of its engine cannot"),
    ] = []
    attention: list[Backend] = []
    kv_dtypes: list[str] = []
    families: Annotated[list[str], Field(description="model families that it was made for; empty: any")] = []
    parsers: Annotated[
        dict[str, str], Field(description="what it calls parsers that have another name in vLLM, by vLLM's name")
    ] = {}
    renamed: list[Renamed] = []
    bugs: list[Bug] = []
    converter: Annotated[Converter | None, Field(description="what makes its GGUFs")] = None
    native: Annotated[str | None, Field(description="the extra that installs it for the native runtime")] = None

    @property
    def kind(self) -> Engine:
        """The engine that this is a release of: how it is started, and what all its releases have in common."""
        return ENGINES[self.engine]

    def parser(self, name: str) -> str:
        """What this release calls a parser that vLLM calls `name`."""
        return self.parsers.get(name, name)
