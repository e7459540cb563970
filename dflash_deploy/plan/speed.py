"""The expected speed: the time of a step from bytes, arithmetic, all-reduces and a few overheads.

One step of decoding reads the weights once and computes every position of every sequence:

    seconds = overlap(weights / bandwidth, 2 x parameters x positions / arithmetic)
            + recurrent states of every position / bandwidth
            + overheads per layer and sequence + all-reduces between GPUs

With a drafter the same step verifies a block of each sequence. The drafter adds its own weights, arithmetic and
overheads; an MTP head adds a pass of its layer and of the output head for each draft token. A step yields as many
tokens as the acceptance length, which depends on the text. The constants are shares of the data sheet and seconds,
fitted to published speeds (benchmarks/fit_speed.py, benchmarks/points.yaml). `python -m benchmarks speed-model`
compares the model with each source by the constants that fit all other sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal, get_args

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.models import Acceptance, ModelPair, Shape, Text
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.document import AcceptanceLength, Count, Documented, Keywords, Rate, shown
from dflash_deploy.plan.compatible import below, capability
from dflash_deploy.serve.engines import DEFAULT, ENGINES
from dflash_deploy.serve.speculation import positions

# Share of the bandwidth that reads of weights reach; the second on unified memory.
BANDWIDTH_REACHED, UNIFIED_REACHED = 0.86, 0.85

# Reached arithmetic by the type that is computed in, as a multiple of the data sheet's dense BF16 (FP32
# accumulation).
#
# FP8 and FP4 tensor cores have two and four times the rate of BF16. INT4 is the rate of GeForce cards, whose kernels
# compute in FP16. Each only on a GPU of the right capability; else BF16.
ARITHMETIC_REACHED = {"bf16": 0.25, "fp8": 0.35, "fp4": 1.35, "int4": 1.7}

OVERLAP = 3.0  # exponent of the sum of reading and arithmetic: 1 is one after the other, infinity the longer of both

# Seconds per step for each of the target's layers, and for each sequence. A pass of an MTP head has them too.
LAYER_OVERHEAD, SEQUENCE_OVERHEAD = 68e-6, 0.08e-3

# Further seconds with drafts, for each of the target's layers: with passes in one graph, with launched kernels,
# and of early releases, which prepare a step only after the one before it.
VERIFY_OVERHEAD = {"graph": 3e-6, "launched": 65e-6, "early": 95e-6}

DRAFT_OVERHEAD = 1.2e-3  # seconds of a drafter's pass, beside its weights and arithmetic

# Seconds of one all-reduce; except on NVLink and for `pair`, for each further GPU.
#
# `pair`: two GPUs on PCIe that exchange one position, for which engines have a kernel of their own. With drafts the
# exchange is larger and goes through host memory, as it does between more GPUs; on PCIe 5 two GPUs wait no longer.
# That of a network is not fitted: two DGX Sparks were reported to be as fast as one.
REDUCE_LATENCY = {"nvlink": 4.4e-6, "pcie": 60e-6, "pair": 4e-6, "network": 300e-6}

# Bytes per second of an all-reduce, from data sheets.
REDUCE_BANDWIDTH = {"nvlink": 400e9, "pcie": 16e9, "network": 20e9}

# Share of the reached bandwidth that reads of experts reach: a step reads a few rows of many small matrices.
EXPERTS_REACHED = 0.72

# Upper through lower end of the range around a prediction: without drafts; of one kind of text; and of MXFP4 on vLLM,
# whose published speeds differ by release and GPU.
WIDTH, WIDTH_OF_TEXT, WIDTH_OF_MXFP4 = 1.75, 1.8, 2.6
_GEFORCE = ("8.6", "8.9", "12.0")

USUAL_MTP_TOKENS = 3  # draft tokens of an MTP head in the published commands of vLLM and SGLang for Qwen3.5 and later

TEXTS: tuple[Text, ...] = get_args(Text)

# Chances that a draft token is accepted after those before it, by text: the medians of the catalog's families. They
# are used for a family without a figure, scaled by those that it has. Images: as chat, since none is published.
USUAL_CHANCE: Mapping[Text, float] = {"chat": 0.77, "code": 0.84, "maths": 0.88, "long": 0.76, "vision": 0.77}

Drafts = Literal["dflash", "mtp"]

RateRange = Annotated[Sequence[Rate], Keywords(minItems=2, maxItems=2)]
LengthRange = Annotated[Sequence[AcceptanceLength], Keywords(minItems=2, maxItems=2)]


@dataclass(frozen=True)
class TextSpeed(Documented):
    """What the speed model expects of one kind of text with drafts."""

    text: Text
    """Kind of text: that of the workload of `bench` with the same name; `long` is a long document."""
    drafts: Drafts
    """What makes the drafts: the drafter, or the target's MTP head."""
    acceptance_length: AcceptanceLength
    """Expected tokens per step."""
    published: bool
    """Whether others published a length for this model and kind of text; else it is scaled from other models."""
    tokens_per_s: Rate
    """Tokens per second of all requests together, in the middle of the range."""
    range: RateRange
    """Lowest and highest tokens per second."""


@dataclass(frozen=True)
class Speed(Documented):
    """What the speed model expects at one concurrency. A range has two numbers, the lowest and the highest."""

    concurrency: Count
    """Requests at the same time."""
    plain_tokens_per_s: RateRange
    """Tokens per second of all requests together, without speculative decoding."""
    plain_expected: Rate
    """The middle of `plain_tokens_per_s`."""
    texts: Sequence[TextSpeed]
    """The speed with drafts by kind of text; empty without drafts. Also with the MTP head if the target has one."""
    note: str
    """Why a range is wider than usual; empty if it is not."""

    def of_copies(self, count: int) -> Speed:
        """The figures of this many copies of the engine, which share the requests out evenly."""
        texts = [
            replace(one, tokens_per_s=round(one.tokens_per_s * count, 1), range=_times(one.range, count))
            for one in self.texts
        ]
        return replace(
            self,
            concurrency=self.concurrency * count,
            plain_tokens_per_s=_times(self.plain_tokens_per_s, count),
            plain_expected=round(self.plain_expected * count, 1),
            texts=texts,
        )

    def of(self, drafts: Drafts) -> tuple[TextSpeed, ...]:
        """The kinds of text with these drafts."""
        return tuple(one for one in self.texts if one.drafts == drafts)

    def expected(self, drafts: Drafts | None) -> float:
        """The central value for a mix of chat and code; without drafts if there are none."""
        mixed = [one.tokens_per_s for one in self.texts if one.drafts == drafts and one.text in ("chat", "code")]
        return _mean(mixed) if mixed else self.plain_expected

    @property
    @shown
    def dflash_tokens_per_s(self) -> RateRange | None:
        """Tokens per second of all requests together, with the drafter, whatever the text; null without a drafter."""
        ranges = [one.range for one in self.of("dflash")]
        return [min(low for low, _ in ranges), max(high for _, high in ranges)] if ranges else None

    @property
    @shown
    def acceptance_length(self) -> LengthRange | None:
        """Acceptance lengths behind `dflash_tokens_per_s`, in tokens per step; null without a drafter."""
        lengths = [one.acceptance_length for one in self.of("dflash")]
        return [min(lengths), max(lengths)] if lengths else None


def _times(values: RateRange, count: int) -> RateRange:
    return [round(value * count, 1) for value in values]


def _around(middle: float, width: float) -> RateRange:
    return [round(middle / width**0.5, 1), round(middle * width**0.5, 1)]


def _mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def predict(
    profile: Profile,
    pair: ModelPair,
    *,
    concurrency: int,
    draft_tokens: int,
    mtp_tokens: int = 0,
    gpus: int | None = None,
    engine: EngineRelease | None = None,
) -> Speed | None:
    """What to expect at a concurrency. `None` on a machine without a GPU.

    `draft_tokens` is 0 without a drafter, `mtp_tokens` 0 without the MTP head. `gpus` are those of one copy of the
    engine; all of the profile if left out. `engine`: a current vLLM if left out.
    """
    if profile.match.gpus == 0:
        return None

    def steps(drafts: Drafts | None, tokens: int) -> float:
        seconds = step_seconds(
            profile, pair, concurrency=concurrency, draft_tokens=tokens, drafts=drafts, gpus=gpus, engine=engine
        )
        return concurrency / seconds

    kind = engine.kind if engine else ENGINES[DEFAULT]
    uncertain = pair.target.quantisation in kind.uneven
    plain, width = steps(None, 0), WIDTH_OF_MXFP4 if uncertain else WIDTH
    texts = []
    methods: tuple[tuple[Drafts, int], ...] = (("dflash", draft_tokens), ("mtp", mtp_tokens))
    for drafts, tokens in methods:
        rate = steps(drafts, tokens) if tokens else 0.0
        for text in TEXTS if tokens else ():
            if text == "vision" and not pair.sees:
                continue
            length, published = expected_length(pair, text, tokens, drafts)
            around = _around(rate * length, WIDTH_OF_MXFP4 if uncertain else WIDTH_OF_TEXT)
            texts.append(TextSpeed(text, drafts, round(length, 2), published, round(rate * length, 1), around))
    note = (
        f"published speeds of {pair.target.quantisation} on {kind.title} differ by release and GPU" if uncertain else ""
    )
    return Speed(concurrency, _around(plain, width), round(plain, 1), texts, note)


def step_seconds(
    profile: Profile,
    pair: ModelPair,
    *,
    concurrency: int,
    draft_tokens: int,
    drafts: Drafts | None = "dflash",
    gpus: int | None = None,
    engine: EngineRelease | None = None,
) -> float:
    """Seconds of one step that verifies `draft_tokens` of each sequence, drafting included. Others: as in `predict`."""
    verified = concurrency * positions(draft_tokens)
    used = gpus or profile.gpus
    bandwidth = _bandwidth(profile) * used
    shape = pair.shape
    common, experts = _read(pair, verified)
    reading = (common + experts / EXPERTS_REACHED) / bandwidth
    # of arithmetic of one position on one GPU
    active = (shape.active_parameters or shape.parameters) - shape.vision_parameters
    position = 2 * active / _arithmetic(profile, pair.target.quantisation)
    seconds = _overlapped(reading, verified * position / used)
    seconds += shape.layers * LAYER_OVERHEAD + concurrency * SEQUENCE_OVERHEAD
    seconds += concurrency * (positions(draft_tokens) + 1) * _state_bytes(shape) / bandwidth
    layers = shape.layers
    if draft_tokens:
        seconds += shape.layers * _verify_overhead(engine)
    if draft_tokens and drafts == "mtp":
        layers += draft_tokens
        one = _mtp_bytes(pair) / bandwidth + LAYER_OVERHEAD + concurrency * SEQUENCE_OVERHEAD
        one += DRAFT_OVERHEAD if engine is not None and not engine.kind.captures_passes else 0
        seconds += draft_tokens * one
    elif draft_tokens:
        layers += pair.drafter.layers
        seconds += DRAFT_OVERHEAD + _drafter_seconds(profile, pair, verified, used)
    exchanged = 2 * shape.hidden_size * verified
    return seconds + 2 * layers * _reduce_seconds(profile, used, exchanged, drafting=draft_tokens > 0)


def _verify_overhead(engine: EngineRelease | None) -> float:
    """Seconds for each layer of the target."""
    if engine is None:
        return VERIFY_OVERHEAD["graph"]
    since = engine.kind.overlaps_since
    early = bool(since) and below(engine.version, since)
    return VERIFY_OVERHEAD["early" if early else "graph" if engine.kind.captures_passes else "launched"]


def _drafter_seconds(profile: Profile, pair: ModelPair, verified: int, used: int) -> float:
    """Seconds in which the drafter reads its weights and computes a block of each sequence."""
    drafter = pair.drafter
    rate = _arithmetic(profile, "int4" if drafter.quantised else "bf16") * used
    # an unquantized drafter has two bytes per parameter, a quantized one about 0.6
    operations = 2 * drafter.bytes / (0.6 if drafter.quantised else 2)
    return _overlapped(drafter.bytes / (_bandwidth(profile) * used), operations * verified / rate)


def _mtp_bytes(pair: ModelPair) -> float:
    """Bytes that one pass of the MTP head reads: one of the target's layers, what joins its inputs, the output head.

    Quantized repositories keep both in 16 bits; a GGUF quantizes them too.
    """
    shape = pair.shape
    embedding = shape.vocabulary * shape.hidden_size
    active = (shape.active_parameters or shape.parameters) - shape.vision_parameters - 2 * embedding
    parameters = max(active, 0) / shape.layers + 2 * shape.hidden_size**2 + embedding
    return parameters * (pair.target.bytes / shape.parameters if pair.target.quantisation == "gguf" else 2.0)


def _overlapped(reading: float, computing: float) -> float:
    return float((reading**OVERLAP + computing**OVERLAP) ** (1 / OVERLAP))


def _bandwidth(profile: Profile) -> float:
    reached = UNIFIED_REACHED if profile.hardware.unified else BANDWIDTH_REACHED
    return profile.hardware.bandwidth * 1e9 * reached


def _arithmetic(profile: Profile, quantisation: str) -> float:
    """Operations per second of one GPU for weights of this quantization, in the fastest type that it can compute in."""
    here = profile.match.compute_capability or ""
    computed = "bf16"
    if quantisation == "fp8" and capability(here) >= (8, 9):
        computed = "fp8"
    elif "fp4" in quantisation and capability(here) >= (10, 0):
        computed = "fp4"
    elif quantisation.startswith(("int4", "gguf")) and here in _GEFORCE:
        computed = "int4"
    return profile.hardware.tflops * 1e12 * ARITHMETIC_REACHED[computed]


def _state_bytes(shape: Shape) -> int:
    """Bytes of the recurrent states of one position: a step reads those of a sequence, and writes some per position."""
    linear = shape.linear_attention
    if linear is None:
        return 0
    return linear.layers * linear.bytes_per_state


def _reduce_seconds(profile: Profile, gpus: int, size: int, *, drafting: bool) -> float:
    """Seconds of one all-reduce of `size` bytes; each layer has two."""
    link = profile.hardware.link
    latency: str = link
    newer = capability(profile.match.compute_capability or "") >= (10, 0)
    if link == "pcie" and gpus == 2 and (newer or not drafting):
        latency = "pair"
    rounds = min(gpus - 1, 1) if link == "nvlink" else gpus - 1
    return rounds * REDUCE_LATENCY[latency] + 2 * (gpus - 1) / gpus * size / REDUCE_BANDWIDTH[link]


def bytes_read(pair: ModelPair, positions: int) -> float:
    """Bytes of weights that one step reads. The embedding is only looked up, the vision tower not run.

    In a mixture of experts a step reads the experts that at least one position chose, assumed to be chosen at random.
    """
    return sum(_read(pair, positions))


def _read(pair: ModelPair, positions: int) -> tuple[float, float]:
    """Bytes of all other weights, and of experts."""
    shape = pair.shape
    embedding = shape.vocabulary * shape.hidden_size
    idle = 2.0 * (shape.vision_parameters + embedding)
    if pair.target.quantisation == "gguf":
        # the embedding is quantized too, and the vision tower is another file
        idle = pair.target.bytes * embedding / shape.parameters
    read = max(pair.target.bytes - idle, 0.5 * pair.target.bytes)
    if shape.experts is None or shape.active_parameters is None:
        return read, 0.0
    count, chosen = shape.experts
    in_experts = (shape.parameters - shape.active_parameters) / (1 - chosen / count) / shape.parameters
    touched = 1 - (1 - chosen / count) ** positions
    return read * (1 - in_experts), read * in_experts * touched


def expected_length(pair: ModelPair, text: Text, draft_tokens: int, drafts: Drafts = "dflash") -> tuple[float, bool]:
    """The mean acceptance length to expect of a kind of text, and whether it was published for this family.

    If it was not, it is that of the nearest family, or what families have usually, scaled by the lengths that this one
    has for other texts.
    """
    known = pair.family.mtp_acceptance if drafts == "mtp" else pair.family.acceptance
    same = [one for one in known if one.text == text]
    if same:
        return _mean(at_draft_tokens(one, draft_tokens) for one in same), not any(one.of for one in same)
    scale = _mean([_odds(_chance(one.length, one.draft_tokens)) / _odds(_usual(one.text)) for one in known] or [1.0])
    odds = _odds(USUAL_CHANCE[text]) * scale
    return _length(odds / (1 + odds), draft_tokens), False


def _odds(chance: float) -> float:
    return chance / (1 - chance)


def _usual(text: Text | None) -> float:
    """The usual chance of a text; of a mix of chat and code if a source does not say what was written."""
    return USUAL_CHANCE[text] if text else (USUAL_CHANCE["chat"] + USUAL_CHANCE["code"]) / 2


def at_draft_tokens(measured: Acceptance, draft_tokens: int) -> float:
    """A measured acceptance length converted to another number of draft tokens.

    It assumes the same chance of acceptance for every position, given those before it:
    length = (1 - p^(k+1)) / (1 - p). For few draft tokens the result is up to a tenth too low, since first positions
    are accepted more often than late ones.
    """
    return _length(_chance(measured.length, measured.draft_tokens), draft_tokens)


@lru_cache(maxsize=1024)
def _chance(length: float, draft_tokens: int) -> float:
    """The chance of acceptance that gives this length, found by halving. A plan asks for the same ones again."""
    low, high = 1e-6, 0.999999
    for _ in range(60):
        middle = (low + high) / 2
        if _length(middle, draft_tokens) < length:
            low = middle
        else:
            high = middle
    return low


def best_draft_tokens(
    profile: Profile, pair: ModelPair, *, concurrency: int, engine: EngineRelease | None = None
) -> int:
    """The number of draft tokens that is fastest at a concurrency, for a mix of chat and code.

    0 if every number is slower than no drafts.
    """

    def rate(tokens: int) -> float:
        seconds = step_seconds(profile, pair, concurrency=concurrency, draft_tokens=tokens, engine=engine)
        return _mean(expected_length(pair, text, tokens)[0] for text in ("chat", "code")) / seconds

    return max(range(pair.drafter.most_draft_tokens + 1), key=rate)


def _length(chance: float, draft_tokens: int) -> float:
    return float(sum(chance**position for position in range(positions(draft_tokens))))
