"""The expected speed: the time of a step from bytes, arithmetic and a few overheads.

One step of decoding reads the weights once and computes every position of every sequence:

    seconds = weights / (0.9 x bandwidth) + 4.5 ms
            + 2 x parameters x positions / (0.275 x arithmetic) + 0.1 ms x sequences

With a drafter the same step verifies a block of each sequence. The drafter adds its own weights, its arithmetic and
7 ms, and a step yields as many tokens as the acceptance length. The five constants were fitted to catalog/speeds.yaml,
where most rows are the B200 of z-lab's card; `make bench` prints the model beside every row of it. Published figures
include prefill and were measured once: a prediction is a range.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from dflash_deploy.catalog import ModelPair, Profile
from dflash_deploy.catalog.models import Acceptance
from dflash_deploy.serve.speculation import DRAFT_TOKENS, positions

BANDWIDTH_REACHED = 0.9
STEP_OVERHEAD = 4.5e-3
ARITHMETIC_REACHED = 0.275
DRAFT_OVERHEAD = 7e-3
SEQUENCE_OVERHEAD = 0.1e-3
"""Seconds and shares, fitted to catalog/speeds.yaml."""

SPREAD = 0.2
"""Half of the range around a prediction. The model's error is below it in nine rows of ten."""

UNKNOWN_LENGTHS = (2.0, 6.0)
"""Range of acceptance lengths that users of 27B targets report, from prose to code (AEON-7, noonghunna)."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second of all requests together, as ranges, and the range of acceptance lengths behind them."""

    concurrency: int
    plain: tuple[float, float]
    dflash: tuple[float, float] | None
    acceptance: tuple[float, float] | None

    def row(self) -> dict[str, object]:
        """The figures for `--json`."""
        return {
            "concurrency": self.concurrency,
            "plain_tokens_per_s": [round(value, 1) for value in self.plain],
            "dflash_tokens_per_s": self.dflash and [round(value, 1) for value in self.dflash],
            "acceptance_length": self.acceptance and [round(value, 2) for value in self.acceptance],
        }


def predict(
    profile: Profile, pair: ModelPair, *, concurrency: int, draft_tokens: int, gpus: int | None = None
) -> Speed | None:
    """The range at a concurrency; `draft_tokens` is 0 without a drafter. `None` on a machine without a GPU.

    `gpus` are those of the engine; all of the profile if left out.
    """
    if profile.match.gpus == 0:
        return None
    plain = concurrency / step_seconds(profile, pair, concurrency=concurrency, draft_tokens=0, gpus=gpus)
    dflash = lengths = None
    if draft_tokens:
        lengths = acceptance_range(pair, draft_tokens)
        seconds = step_seconds(profile, pair, concurrency=concurrency, draft_tokens=draft_tokens, gpus=gpus)
        steps = concurrency / seconds
        dflash = (steps * lengths[0] * (1 - SPREAD), steps * lengths[1] * (1 + SPREAD))
    return Speed(concurrency, (plain * (1 - SPREAD), plain * (1 + SPREAD)), dflash, lengths)


def step_seconds(
    profile: Profile, pair: ModelPair, *, concurrency: int, draft_tokens: int, gpus: int | None = None
) -> float:
    """Seconds of one step that verifies `draft_tokens` of each sequence, drafting included. `gpus`: as in `predict`."""
    verified = concurrency * positions(draft_tokens)
    used = gpus or profile.gpus
    bandwidth = profile.hardware.bandwidth * 1e9 * used * BANDWIDTH_REACHED
    arithmetic = profile.hardware.tflops * 1e12 * used * ARITHMETIC_REACHED
    shape = pair.shape
    active = shape.active_parameters or shape.parameters
    seconds = bytes_read(pair, verified) / bandwidth + STEP_OVERHEAD + concurrency * SEQUENCE_OVERHEAD
    seconds += 2 * (active - shape.vision_parameters) * verified / arithmetic
    if draft_tokens:
        # two bytes per parameter, however it is quantized on disk: drafters compute in BF16
        seconds += pair.drafter.bytes / bandwidth + DRAFT_OVERHEAD + pair.drafter.bytes * verified / arithmetic
    return seconds


def prompt_token_seconds(profile: Profile, pair: ModelPair) -> float:
    """Seconds that one token of a prompt adds to a step: its arithmetic, at the same share of the GPU's as decoding."""
    active = pair.shape.active_parameters or pair.shape.parameters
    arithmetic = profile.hardware.tflops * 1e12 * profile.gpus * ARITHMETIC_REACHED
    return 2 * (active - pair.shape.vision_parameters) / arithmetic


def bytes_read(pair: ModelPair, positions: int) -> float:
    """Bytes of weights that one step reads. The embedding is only looked up, the vision tower not run; both are BF16.

    In a mixture of experts a step reads the experts that at least one position chose, assumed to be chosen at random.
    """
    shape = pair.shape
    idle = 2.0 * (shape.vision_parameters + shape.vocabulary * shape.hidden_size)
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
