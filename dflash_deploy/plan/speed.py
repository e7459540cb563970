"""The expected speed: the time of a step from bytes, arithmetic, all-reduces and a few overheads.

One step of decoding reads the weights once and computes every position of every sequence:

    seconds = overlap(weights / bandwidth, 2 x parameters x positions / arithmetic)
            + recurrent states of every position / bandwidth
            + overheads per layer and sequence + all-reduces between GPUs

With a drafter the same step verifies a block of each sequence. The drafter adds its own weights, arithmetic and
overheads, and a step yields as many tokens as the acceptance length. The constants are shares of the data sheet and
seconds, fitted to a half of the published speeds (benchmarks/fit_speed.py, benchmarks/points.yaml).
`python -m benchmarks speed-model` compares the model with all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.models import Acceptance, ModelPair, Shape
from dflash_deploy.document import AcceptanceLength, Count, Documented, Hidden, Keywords, Rate, shown
from dflash_deploy.plan.compatible import capability
from dflash_deploy.serve.speculation import DRAFT_TOKENS, positions

# Share of the bandwidth that reads of weights reach; the second on unified memory.
BANDWIDTH_REACHED, UNIFIED_REACHED = 0.93, 0.83

# Reached arithmetic by the type that is computed in, as a multiple of the data sheet's dense BF16 (FP32
# accumulation).
#
# FP8 and FP4 tensor cores have two and four times the rate of BF16. INT4 is the rate of GeForce cards, whose kernels
# compute in FP16. Each only on a GPU of the right capability; else BF16.
ARITHMETIC_REACHED = {"bf16": 0.26, "fp8": 0.6, "fp4": 1.3, "int4": 1.7}

OVERLAP = 3.0  # exponent of the sum of reading and arithmetic: 1 is one after the other, infinity the longer of both

# Seconds per step for each of the target's layers, and for each sequence.
LAYER_OVERHEAD, SEQUENCE_OVERHEAD = 72e-6, 0.1e-3

# Further seconds with a drafter: for each of the target's layers, and once.
VERIFY_OVERHEAD, DRAFT_OVERHEAD = 70e-6, 0.7e-3

# Seconds of one all-reduce; except on NVLink, for each further GPU.
#
# That of a network is not fitted: two DGX Sparks were reported to be as fast as one.
REDUCE_LATENCY = {"nvlink": 4.4e-6, "pcie": 61e-6, "network": 300e-6}

# Bytes per second of an all-reduce, from data sheets.
REDUCE_BANDWIDTH = {"nvlink": 400e9, "pcie": 16e9, "network": 20e9}

# Half of the range around a prediction. The error is below it for eight of ten figures that were not fitted.
SPREAD = 0.3

WIDEST = 2.5  # the widest range, as upper through lower end. Prose can be slower than that, and repetitive code faster.
_GEFORCE = ("8.6", "8.9", "12.0")

# Range of acceptance lengths that users of 27B targets report, from prose to code (AEON-7, noonghunna).
UNKNOWN_LENGTHS = (2.0, 6.0)


RateRange = Annotated[Sequence[Rate], Keywords(minItems=2, maxItems=2)]
LengthRange = Annotated[Sequence[AcceptanceLength], Keywords(minItems=2, maxItems=2)]


@dataclass(frozen=True)
class Speed(Documented):
    """What the speed model expects at one concurrency. A range has two numbers, the lowest and the highest."""

    concurrency: Count
    """Requests at the same time."""
    plain: Hidden[tuple[float, float]]
    dflash: Hidden[tuple[float, float] | None]
    acceptance: Hidden[tuple[float, float] | None]

    def of_copies(self, count: int) -> Speed:
        """The figures of this many copies of the engine, which share the requests out evenly."""
        plain = (self.plain[0] * count, self.plain[1] * count)
        dflash = self.dflash and (self.dflash[0] * count, self.dflash[1] * count)
        return Speed(self.concurrency * count, plain, dflash, self.acceptance)

    @property
    @shown
    def plain_tokens_per_s(self) -> RateRange:
        """Tokens per second of all requests together, without speculative decoding."""
        return [round(value, 1) for value in self.plain]

    @property
    @shown
    def dflash_tokens_per_s(self) -> RateRange | None:
        """Tokens per second of all requests together, with the drafter; null without a drafter."""
        return self.dflash and [round(value, 1) for value in self.dflash]

    @property
    @shown
    def acceptance_length(self) -> LengthRange | None:
        """Acceptance length behind `dflash_tokens_per_s`, in tokens per step; null without a drafter."""
        return self.acceptance and [round(value, 2) for value in self.acceptance]


def predict(
    profile: Profile, pair: ModelPair, *, concurrency: int, draft_tokens: int, gpus: int | None = None
) -> Speed | None:
    """The range at a concurrency; `draft_tokens` is 0 without a drafter. `None` on a machine without a GPU.

    `gpus` are those of one copy of the engine; all of the profile if left out.
    """
    if profile.match.gpus == 0:
        return None
    plain = concurrency / step_seconds(profile, pair, concurrency=concurrency, draft_tokens=0, gpus=gpus)
    dflash = lengths = None
    if draft_tokens:
        lengths = acceptance_range(pair, draft_tokens)
        seconds = step_seconds(profile, pair, concurrency=concurrency, draft_tokens=draft_tokens, gpus=gpus)
        steps = concurrency / seconds
        dflash = _narrowed(steps * lengths[0] * (1 - SPREAD), steps * lengths[1] * (1 + SPREAD))
    return Speed(concurrency, (plain * (1 - SPREAD), plain * (1 + SPREAD)), dflash, lengths)


def _narrowed(low: float, high: float) -> tuple[float, float]:
    middle, half = (low * high) ** 0.5, min(high / low, WIDEST) ** 0.5
    return (middle / half, middle * half)


def step_seconds(
    profile: Profile, pair: ModelPair, *, concurrency: int, draft_tokens: int, gpus: int | None = None
) -> float:
    """Seconds of one step that verifies `draft_tokens` of each sequence, drafting included. `gpus`: as in `predict`."""
    verified = concurrency * positions(draft_tokens)
    used = gpus or profile.gpus
    bandwidth = _bandwidth(profile) * used
    shape, drafter = pair.shape, pair.drafter
    seconds = _overlapped(bytes_read(pair, verified) / bandwidth, verified * _position_seconds(profile, pair) / used)
    seconds += shape.layers * LAYER_OVERHEAD + concurrency * SEQUENCE_OVERHEAD
    seconds += concurrency * (positions(draft_tokens) + 1) * _state_bytes(shape) / bandwidth
    layers = shape.layers
    if draft_tokens:
        layers += drafter.layers
        rate = _arithmetic(profile, "int4" if drafter.quantised else "bf16") * used
        # an unquantized drafter has two bytes per parameter, a quantized one about 0.6
        operations = 2 * drafter.bytes / (0.6 if drafter.quantised else 2)
        seconds += _overlapped(drafter.bytes / bandwidth, operations * verified / rate)
        seconds += DRAFT_OVERHEAD + shape.layers * VERIFY_OVERHEAD
    return seconds + 2 * layers * _reduce_seconds(profile, used, 2 * shape.hidden_size * verified)


def _overlapped(reading: float, computing: float) -> float:
    return float((reading**OVERLAP + computing**OVERLAP) ** (1 / OVERLAP))


def _bandwidth(profile: Profile) -> float:
    reached = UNIFIED_REACHED if profile.hardware.unified else BANDWIDTH_REACHED
    return profile.hardware.bandwidth * 1e9 * reached


def _position_seconds(profile: Profile, pair: ModelPair) -> float:
    """Seconds of arithmetic of one position on one GPU."""
    active = pair.shape.active_parameters or pair.shape.parameters
    return 2 * (active - pair.shape.vision_parameters) / _arithmetic(profile, pair.target.quantisation)


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


def _reduce_seconds(profile: Profile, gpus: int, size: int) -> float:
    """Seconds of one all-reduce of `size` bytes; each layer has two."""
    link = profile.hardware.link
    rounds = min(gpus - 1, 1) if link == "nvlink" else gpus - 1
    return rounds * REDUCE_LATENCY[link] + 2 * (gpus - 1) / gpus * size / REDUCE_BANDWIDTH[link]


def bytes_read(pair: ModelPair, positions: int) -> float:
    """Bytes of weights that one step reads. The embedding is only looked up, the vision tower not run.

    In a mixture of experts a step reads the experts that at least one position chose, assumed to be chosen at random.
    """
    shape = pair.shape
    embedding = shape.vocabulary * shape.hidden_size
    idle = 2.0 * (shape.vision_parameters + embedding)
    if pair.target.quantisation == "gguf":
        # the embedding is quantized too, and the vision tower is another file
        idle = pair.target.bytes * embedding / shape.parameters
    read = max(pair.target.bytes - idle, 0.5 * pair.target.bytes)
    if shape.experts is None or shape.active_parameters is None:
        return read
    count, chosen = shape.experts
    in_experts = (shape.parameters - shape.active_parameters) / (1 - chosen / count) / shape.parameters
    touched = 1 - (1 - chosen / count) ** positions
    return read * (1 - in_experts + in_experts * touched)


def acceptance_range(pair: ModelPair, draft_tokens: int) -> tuple[float, float]:
    """The shortest and longest mean acceptance length expected with this number of draft tokens."""
    known = [at_draft_tokens(measured, draft_tokens) for measured in pair.family.acceptance]
    low, high = (
        at_draft_tokens(Acceptance(workload="", draft_tokens=DRAFT_TOKENS, length=length, source=""), draft_tokens)
        for length in UNKNOWN_LENGTHS
    )
    return (min([low, *known]), max(known) if known else high)


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
    low, high = 0.0, 0.999999
    for _ in range(60):
        middle = (low + high) / 2
        if _length(middle, draft_tokens) < length:
            low = middle
        else:
            high = middle
    return low


def best_draft_tokens(profile: Profile, pair: ModelPair, *, concurrency: int) -> int:
    """The number of draft tokens that is fastest at a concurrency and a medium acceptance length.

    0 if every number is slower than no drafts.
    """
    choices = {0: concurrency / step_seconds(profile, pair, concurrency=concurrency, draft_tokens=0)}
    for draft_tokens in range(1, pair.drafter.most_draft_tokens + 1):
        low, high = acceptance_range(pair, draft_tokens)
        seconds = step_seconds(profile, pair, concurrency=concurrency, draft_tokens=draft_tokens)
        choices[draft_tokens] = concurrency * (low * high) ** 0.5 / seconds
    return max(choices, key=lambda draft_tokens: choices[draft_tokens])


def _length(chance: float, draft_tokens: int) -> float:
    return float(sum(chance**position for position in range(positions(draft_tokens))))
