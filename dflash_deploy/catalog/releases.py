"""Engine releases: the hardware and formats they support, what changed, their known bugs, and their options.

The options of a release have every spelling that its own parser accepts.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from dflash_deploy.catalog.hardware import Capability
from dflash_deploy.catalog.read import Architecture, AttentionTrait, Entry, Evidenced, Quantisation
from dflash_deploy.serve.engines import ENGINES, Engine


def _known_engine(name: str) -> str:
    if name not in ENGINES:
        raise ValueError(f"`{name}` is not an engine: expected one of {', '.join(ENGINES)}")
    return name


# The engine by its command line. AEON's images contain vLLM; the buun fork of llama.cpp has different arguments.
EngineName = Annotated[str, AfterValidator(_known_engine)]


class BaseImage(Entry):
    """The base image of the project's image, for one processor architecture."""

    tag: str
    seen: Annotated[bool, Field(description="true: a report shows it in use; false: it is only the expected name")]
    source: str = ""

    @property
    def moves(self) -> bool:
        """Whether the tag names the newest image, which changes, instead of a version or a digest."""
        return "@sha256:" not in self.tag and not any(map(str.isdigit, self.tag.rpartition(":")[2]))


class OlderDrivers(Entry):
    """The same image built with an earlier CUDA, for drivers that are too old for the default one."""

    suffix: Annotated[str, Field(description="suffix that its tag adds to the default tag")]
    driver: Annotated[str, Field(description="lowest NVIDIA driver for this image")]
    seen: Annotated[bool, Field(description="true: a report shows it in use; false: it is only the expected name")]
    source: str


class Backend(Entry):
    """An attention backend of this release on a range of GPUs. The first entry that matches a GPU applies."""

    name: str
    capabilities: Annotated[
        tuple[Capability, Capability], Field(description="lowest and highest compute capability that it runs on")
    ]
    drafts: Annotated[bool, Field(description="it supports non-causal attention, which a DFlash drafter needs")]
    fp8_kv: Annotated[bool, Field(description="it supports an FP8 KV cache on these GPUs")] = False
    fp8_kv_most_head_dim: Annotated[int | None, Field(description="largest head dimension with FP8 KV cache")] = None
    fp8_kv_refuses: Annotated[
        list[AttentionTrait], Field(description="what it cannot compute for a target together with an FP8 KV cache")
    ] = []
    block_tokens: Annotated[
        dict[int, int], Field(description="tokens of a block that it reads, by head dimension; 16 for all others")
    ] = {}
    fp8_block_tokens: Annotated[
        dict[int, int], Field(description="the same for the head dimensions that differ with an FP8 KV cache")
    ] = {}
    other_kv: Annotated[
        list[str], Field(description="types of KV cache that it supports beside 16 bits and `fp8`, on these GPUs")
    ] = []
    causal_kv: Annotated[
        list[str], Field(description="types of KV cache that it supports only with causal attention, so of a target")
    ] = []
    refuses: Annotated[
        list[AttentionTrait], Field(description="what it cannot compute for a target on these GPUs")
    ] = []
    needs: Annotated[
        list[AttentionTrait], Field(description="what a target's attention must have: it computes no other")
    ] = []
    source: str


class Renamed(Entry):
    """An outdated argument or variable that is still in use, and its replacement."""

    old: str
    new: Annotated[str, Field(description="what to write instead; empty if it has no replacement")] = ""
    since: Annotated[str, Field(description="first version in which the old name is removed or has no effect")]
    effect: Annotated[
        Literal["refused", "ignored"], Field(description="what the engine does with the old name since then")
    ]
    source: str


class Bug(Entry):
    """A known defect of this release."""

    what: str
    until: Annotated[str, Field(description="version that fixes it; empty while it is open")] = ""
    workaround: str
    source: str
    setting: Annotated[
        str,
        Field(description="line of .env that leads to it, `*` for any value; a profile that has it cites the source"),
    ] = ""
    changes_answers: Annotated[
        bool, Field(description="true: with a drafter, a hybrid target's answers are not its own: `plan` and `up` warn")
    ] = False
    sound_sequences: Annotated[
        int | None,
        Field(ge=1, description="most sequences that it serves rightly with a drafter; `init` sets no more"),
    ] = None


class Converter(Entry):
    """An image whose entry point takes llama.cpp's `--convert` and `--quantize`, and the drafters that it writes."""

    image: str
    architecture: Annotated[
        Literal["dflash", "dflash-draft"], Field(description="`general.architecture` of a drafter that it writes")
    ]
    seen: Annotated[bool, Field(description="true: a report shows it in use; false: it is only the expected name")]
    source: str


class PrefixCache(Entry):
    """What drafts do to a release's prefix cache, and so to the cost of the second turn of a conversation."""

    with_drafts: Annotated[
        Literal["kept", "spoiled", "crashes"],
        Field(
            description="`kept`: a second turn reads only its new part; `spoiled`: the drafter's part of a prefix is "
            "missing or stale; `crashes`: off, since the engine ends"
        ),
    ]
    by: Annotated[str, Field(description="who measured it, or where it is read")]


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
            "or nothing (it is a shell). The project's image replaces all four by its own entry point"
        ),
    ] = "arguments"
    capabilities: Annotated[
        list[Capability], Field(description="compute capabilities that its kernels were built for; empty: any")
    ] = []
    driver: Annotated[str | None, Field(description="lowest NVIDIA driver")] = None
    older_drivers: OlderDrivers | None = None
    loads: Annotated[
        dict[Quantisation, Capability],
        Field(description="quantizations that it loads, each with the lowest compute capability"),
    ]
    unproven: Annotated[
        list[Quantisation], Field(description="those of `loads` without any report that they load on a GPU")
    ] = []
    drafters: Annotated[list[str], Field(description="drafter architectures that it supports")]
    abilities: Annotated[
        list[
            Literal[
                "drafter-backend",
                "drafter-kv-dtype",
                "sliding-drafters",
                "mixed-drafters",
                "drafter-windows",
                "clamps-draft-slots",
                "drafts-with-images",
                "quantized-drafters",
                "speculators-drafters",
            ]
        ],
        Field(description="features of this release that other releases of its engine lack"),
    ] = []
    prefix_cache: PrefixCache | None = None
    attention: list[Backend] = []
    kv_dtypes: list[str] = []
    drafter_kv_dtypes: Annotated[list[str], Field(description="those of the drafter; empty: those of the target")] = []
    families: Annotated[list[str], Field(description="model families that it supports; empty: any")] = []
    parsers: Annotated[
        dict[str, str],
        Field(
            description="its names of parsers that differ from vLLM's, by vLLM's name, or setting and name; empty: none"
        ),
    ] = {}
    renamed: list[Renamed] = []
    bugs: list[Bug] = []
    converter: Annotated[Converter | None, Field(description="the image that converts its GGUFs")] = None
    native: Annotated[
        str | None,
        Field(
            description="the pip extra that installs it for the native runtime, or `program` for a program that the "
            "user builds"
        ),
    ] = None
    light: Annotated[
        bool, Field(description="that extra has some hundred MB: the default where neither a GPU nor Docker is")
    ] = False

    @property
    def open_bugs(self) -> tuple[Bug, ...]:
        """The known defects that no version fixes yet."""
        return tuple(bug for bug in self.bugs if not bug.until)

    @property
    def limit_of_sequences(self) -> tuple[int, Bug] | None:
        """The most sequences that it serves rightly with a drafter, and the defect; `None` if it serves any number."""
        limits = ((bug.sound_sequences, bug) for bug in self.open_bugs if bug.sound_sequences is not None)
        return min(limits, key=lambda limit: limit[0], default=None)

    @property
    def kind(self) -> Engine:
        """The engine that this is a release of: how it is started, and what all its releases have in common."""
        return ENGINES[self.engine]

    def image_on(self, architecture: Architecture | None) -> BaseImage:
        """The base image for a processor; the first one if it is not known."""
        return self.base_images[architecture] if architecture else next(iter(self.base_images.values()))

    def parser(self, setting: str, name: str | None) -> str:
        """This release's name of the parser that vLLM calls `name`, for a setting; empty if it has none for it."""
        return self.parsers.get(f"{setting} {name}", self.parsers.get(name or "", name or ""))


class RayRelease(Entry):
    """A release of Ray, and the vLLM that Ray Serve LLM runs with it. The newest also says what that vLLM can do."""

    ray: str
    vllm: Annotated[str, Field(description="release of vLLM that `ray[llm]` requires")]
    drafters: Annotated[frozenset[str], Field(description="drafter architectures that this vLLM loads")] = frozenset()
    kv_dtypes: Annotated[frozenset[str], Field(description="types of KV cache that it has")] = frozenset()
    arguments: Annotated[
        frozenset[str],
        BeforeValidator(str.split),
        Field(description="names of its engine's arguments that Ray passes on, between spaces"),
    ] = frozenset()


class ReleaseOptions(Entry):
    """Every spelling of every option of one release."""

    release: Annotated[str, Field(description="name of the engine release")]
    options: Annotated[str, Field(min_length=1, description="the names, between spaces")]
    variables: Annotated[
        str,
        Field(
            description="names of the variables that begin as its own do and that it reads; empty: unknown. "
            "NAME=--option, or NAME=--switch|--opposite, if it is an option"
        ),
    ] = ""
