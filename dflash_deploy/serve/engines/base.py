"""`Engine`: all that the program knows about an engine. Each engine's module has a subclass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from dflash_deploy.serve.engines.counters import MetricNames, MetricSample, SpecCounters
from dflash_deploy.serve.engines.installed import InstalledEngine
from dflash_deploy.serve.extras import install_command
from dflash_deploy.serve.field import Field
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import MTP, Speculation
from dflash_deploy.serve.traces import check_exporters

# The only allowed domain if none is set: vLLM and SGLang read an empty list as every domain (vLLM 0.19 to 0.33,
# multimodal/media/connector.py; SGLang 0.5.23, srt/utils/common.py), and no domain ends in .invalid (RFC 6761).
NO_DOMAIN = "no-remote-media.invalid"

# The module that runs an engine behind the gateway: it gives the engine its address and its key.
DOOR = "dflash_deploy.serve.door"

# How an endpoint reads an answer again without drafts: `dflash_deploy.client.rereading` has both ways.
RereadingMethod = Literal["echo", "tokens"]

IN_ENV = "`ps` shows arguments to every user"  # why secrets are not passed as arguments


@dataclass(frozen=True)
class Build:
    """The build of an engine that the arguments are for: its version, and whether it runs on the processor."""

    version: str
    cpu: bool = False


@dataclass(frozen=True)
class Launch:
    """The process to execute. `arguments` are the engine's, without a secret; `command` may have others before them."""

    title: str
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Reserved:
    """A flag that EXTRA_ARGS must not hold: the last argument wins, and no rule would check it."""

    fields: tuple[Field[Any], ...]
    reason: str = ""

    def __str__(self) -> str:
        names = " and ".join(field.name for field in self.fields)
        return ": ".join(filter(None, (names, self.reason)))


def reserved(*fields: Field[Any], reason: str = "") -> Reserved:
    """The settings that a flag has."""
    return Reserved(fields, reason)


class Engine(ABC):
    """One engine: its start, its settings, and its differences from the others.

    Outside the engines' modules, code asks this object and never compares names.
    """

    name: ClassVar[str]
    """The name in the catalog, and of the folder below images/."""
    title: ClassVar[str]
    program: ClassVar[tuple[str, ...]]
    """The words before the arguments in a shell."""
    template: ClassVar[str]
    """The file in env-templates/ that lists the settings."""
    fragments: ClassVar[tuple[str, ...]]
    """The engine's own files in compose/, in the order in which they are merged."""
    reserved_flags: ClassVar[Mapping[str, Reserved]]
    metrics: ClassVar[MetricNames]
    abbreviates: ClassVar[bool] = True
    """Whether the engine's parser takes the beginning of a flag for the flag, as Python's argparse does."""

    # --- the endpoint
    routes: ClassVar[tuple[str, ...]] = ()
    """Paths of a server that has no API description (/openapi.json) to read them from."""
    refuses_other_models: ClassVar[bool] = False
    """Whether a request for a model that is not served gets a 404 instead of an answer of the served one."""
    step_times: ClassVar[Mapping[str, object]] = {}
    """Fields of a request after which each chunk has the time of its step; empty if all tokens of a step are one."""
    reports_weights: ClassVar[bool] = False
    """Whether /v1/models names the path of the weights, instead of repeating the served name."""

    # --- memory
    utilization: ClassVar[float | None] = 0.92
    """Share of a GPU's memory that the engine claims if none is set; `None`: it takes what the weights need."""
    utilization_covers_activations: ClassVar[bool] = True
    """Whether the share counts activations and graphs, or only weights and cache."""
    drafter_kv_cache_dtype: ClassVar[str] = ""
    """Type of the drafter's KV cache if none is set; empty: the target's."""

    smaller_caches: ClassVar[tuple[str, ...]] = ()
    """Types of KV cache for a context that does not fit in 16 bits, the most exact first."""

    whole_contexts: ClassVar[bool] = False
    """Whether it takes the KV cache of all sequences, each of full length, when it starts."""

    state_ratio: ClassVar[float | None] = None
    """Memory of recurrent states through that of KV, if the prefix cache keeps both in pools of fixed size."""

    recurrent_states: ClassVar[int | None] = None
    """Recurrent states that a sequence holds; `None`: one for each position of a step."""

    most_at_once: ClassVar[int | None] = None
    """Most tokens that it computes at once; `None`: `max_num_batched_tokens`."""
    steps_in_flight: ClassVar[int] = 1
    """Steps that are scheduled at the same time; a window keeps the tokens of all of them."""
    stateful_prompt_steps: ClassVar[int] = 1
    """Least steps of a prompt for a target with recurrent or sliding layers, however short it is."""

    # --- speculative decoding
    speculation_budget: ClassVar[bool] = False
    """Whether max_num_batched_tokens must hold the draft positions of all sequences beside the prompts."""
    captures_passes: ClassVar[bool] = True
    """Whether all passes of a step are one captured graph, instead of kernels that are launched one after the other."""
    overlaps_since: ClassVar[str] = ""
    """First release that prepares a step while the one before it runs; empty: all, as far as is known."""
    uneven: ClassVar[tuple[str, ...]] = ()
    """Quantizations whose published speeds differ by release and GPU."""
    counts_by_position: ClassVar[bool] = False
    """Whether the counters say how many drafts were accepted up to each position, which `tune` needs."""
    counts_every_draft: ClassVar[bool] = False
    """Whether a zero in the counters means that no draft was made, and not that drafts are not counted."""
    rereads: ClassVar[RereadingMethod | None] = None
    """How the engine reads an answer again without drafts, which `test` compares; `None`: not known to work."""
    windows_in_header: ClassVar[bool] = False
    """Whether the drafter's attention windows are read from its weights, so that every release runs them."""
    drafter_limits_context: ClassVar[bool] = False
    """Whether the engine refuses a context beyond the positions in the drafter's files."""
    quantized_drafters: ClassVar[bool] = False
    """Whether drafters are usually quantized for this engine."""
    drafter_formats: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Quantizations of drafters that the engine reads if these arguments name them."""
    architectures: ClassVar[frozenset[str]] = frozenset()
    """`general.architecture` of the GGUFs that the release `architectures_of` loads as a target."""
    architectures_of: ClassVar[str] = ""
    """Empty: it is not known which GGUFs the engine loads."""
    compiled: ClassVar[str] = "~/.cache"
    """Where kernels and graphs stay that it compiles at its first start, natively; empty if it compiles none."""
    drafting_caches: ClassVar[int] = 1
    """KV caches of a sequence that gets drafts."""
    drafting_sequences: ClassVar[int | None] = None
    """Sequences that get drafts at the same time; `None`: all."""
    drafter_chooses_backend: ClassVar[bool] = False
    """Whether the drafter picks an attention backend of its own if none is named, whatever the target's is."""
    fp8_kv_from_checkpoint: ClassVar[bool] = False
    """Whether a checkpoint can force an FP8 KV cache on the engine."""
    shares_experts: ClassVar[bool] = False
    """Whether the experts of a mixture are divided over all data-parallel copies."""
    stale_drafter_prefixes: ClassVar[bool] = False
    """Whether releases of it exist that lose the drafter's part of cached prefixes."""

    @abstractmethod
    def arguments(self, settings: Settings, build: Build) -> list[str]:
        """The arguments of the engine's own command: what follows `program`.

        No secret is among them. Raises Refused if that build cannot do what the settings ask.
        """

    @abstractmethod
    def launch(self, settings: Settings, environment: Mapping[str, str]) -> Launch:
        """The process that becomes the engine. Raises Refused if it cannot be started with these settings."""

    def question(self, settings: Settings, environment: Mapping[str, str]) -> Launch | None:
        """The process that makes the engine's configuration without weights, and writes a `serve.answer`.

        It gets no secrets. `None` if the engine has no way to be asked. Raises Refused as `launch` does.
        """
        return None

    @abstractmethod
    def shortcomings(self, server: Path) -> list[str]:
        """What the installed engine lacks for DFlash; empty if nothing. `server` is the binary of llama.cpp."""

    def installed(self, settings: Settings | None = None) -> InstalledEngine | None:
        """The engine for the native runtime, `None` if it is missing.

        It is the program that `settings` names, else the one beside this Python or on the PATH.
        """
        return None

    def how_to_install(self, extra: str) -> str:
        """How to get the engine for the native runtime, as a hint; `extra` is the release's extra of this package."""
        return f"run `{install_command(extra)}`"

    def drafts(self, samples: Iterable[MetricSample]) -> SpecCounters:
        """The counters of speculative decoding, as vLLM names them; llama.cpp took over the names."""
        known, names = list(samples), self.metrics
        by_position = f"{names.prefix}:{names.accepted_by_position}"
        positions: dict[int, float] = {}
        for sample in known:
            if sample.position is not None and sample.name == by_position:
                positions[sample.position] = positions.get(sample.position, 0) + sample.value
        return SpecCounters(
            drafts=names.total(known, names.drafts),
            draft_tokens=names.total(known, names.draft_tokens),
            accepted_tokens=names.total(known, names.accepted_tokens),
            accepted_by_position=tuple(int(positions[position]) for position in sorted(positions)),
        )

    def schedules_drafts(self, version: str) -> bool:
        """Whether that version makes fewer draft tokens if more sequences share a step (DFLASH_SPEC_SCHEDULE)."""
        return False

    def knows(self, field: Field[Any]) -> bool:
        """Whether the engine has a setting."""
        return self.template in field.templates

    @property
    def settings(self) -> tuple[Field[Any], ...]:
        """The settings of the engine's template, in the order of `Settings`."""
        return tuple(field for field in Settings.fields() if self.knows(field) and not field.internal)

    def check_extra_args(self, settings: Settings) -> None:
        """Raises Refused if EXTRA_ARGS holds a flag that has a setting, also abbreviated."""
        for flag in extra_flags(settings):
            meant = flag if flag in self.reserved_flags else self._abbreviated(flag)
            if meant:
                of, found = self.reserved_flags[meant], flag if meant == flag else f"{flag} ({meant})"
                why = "which has a setting of its own" if of.fields else str(of)
                hint = f"set {of}" if of.fields else f"remove it from {Settings.extra_args}"
                raise Refused(f"{Settings.extra_args} holds {found}, {why}", hint=hint)

    def reads_as(self, flag: str, known: Collection[str]) -> bool:
        """Whether the engine's parser takes a flag for one that it knows: abbreviated, with a `.key`, or `-O3`."""
        whole = flag.partition(".")[0]
        if not self.abbreviates:
            return False
        return whole in known or any(
            one.startswith(whole) if whole.startswith("--") else whole.startswith(one) for one in known
        )

    def _abbreviated(self, flag: str) -> str:
        """The flag that the engine's parser may take this one for; empty if none. A flag can be longer by a `.key`."""
        whole = flag.partition(".")[0]
        if whole in self.reserved_flags:
            return whole
        if not self.abbreviates or not whole.startswith("--"):
            return ""
        return next((one for one in self.reserved_flags if one.startswith(whole)), "") if len(whole) > len("--") else ""


def extra_flags(settings: Settings) -> Iterator[str]:
    """The words of EXTRA_ARGS without a value after `=`. The engines' parsers take --api_key for --api-key."""
    for word in settings.extra_args:
        yield word.split("=", 1)[0].replace("_", "-")


def media_domains(settings: Settings) -> Iterator[str]:
    """`--allowed-media-domains` with the hosts that the engine may download media from; nothing if it may use all."""
    if settings.allowed_media_domains != ("all",):
        yield "--allowed-media-domains"
        yield from settings.allowed_media_domains or (NO_DOMAIN,)


def drafter_weights(speculation: Speculation, engine: str) -> str:
    """The drafter's weights, for engines that need weights of its own. Raises Refused for the MTP head."""
    if speculation.path is None:
        raise Refused(
            f"{Settings.dflash_drafter}={MTP}: the MTP head is supported with vLLM, not with {engine}",
            hint=f"name a drafter, or write {Settings.dflash_drafter}=off",
        )
    return speculation.path


def valued(flag: str, value: object | None) -> Iterator[str]:
    """A flag with its value; nothing for `None` or an empty text."""
    if value is not None and value != "":
        yield flag
        yield str(value)


def traces_environment(settings: Settings, engine: Engine) -> dict[str, str]:
    """The variables with which an engine sends traces; empty if it sends none. Raises Refused if it cannot."""
    if settings.otlp_traces_endpoint is None:
        return {}
    check_exporters(Settings.otlp_traces_endpoint.name, engine.title)
    return settings.otlp_traces_endpoint.environment(service=engine.name)
