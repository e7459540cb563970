"""Predicts the speed of every number of draft tokens from a few measurements, and decides which settings to propose.

Acceptance by position, counted once with the most draft tokens, gives the tokens of a step with fewer of them. The time
of a step is a line through two numbers of draft tokens, separately at each concurrency.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from statistics import fmean, geometric_mean, linear_regression

from dflash_deploy.bench.figures import Row
from dflash_deploy.serve.settings import Settings

# How much two measurements of one setting may differ. Smaller gains are not proposed, smaller losses are ignored.
NOISE = 0.02

SHORTEST_STEP = 1e-6  # seconds: a noisy time to the first token must not leave a negative one

OFF = {Settings.dflash_drafter.name: "off"}


def fixed(count: int) -> dict[str, str]:
    """The settings of a fixed number of draft tokens."""
    return {Settings.dflash_num_spec_tokens.name: str(count), Settings.dflash_spec_schedule.name: ""}


def title_of(count: int) -> str:
    """A fixed number of draft tokens in words."""
    return {0: "no drafter", 1: "1 draft token"}.get(count, f"{count} draft tokens")


@dataclass(frozen=True)
class Model:
    """The measured rows by draft tokens (0: no drafter), one for each concurrency; and what they predict."""

    rows: Mapping[int, Sequence[Row]]

    @property
    def lengths(self) -> list[float]:
        """Tokens of a step by draft tokens, from 0 on; a position that was never reached adds nothing."""
        most = max(self.rows)
        shares = [(*row.acceptance_by_position, *(0.0,) * most)[:most] for row in self.rows[most]]
        return list(accumulate(map(fmean, zip(*shares, strict=True)), initial=1.0))

    def rate(self, count: int, place: int) -> float:
        """Tokens/s with the drafter running, as measured or predicted, at the concurrency of this place.

        It runs with 0 draft tokens too: vLLM's proposer updates its KV cache (v1/spec_decode/llm_base_proposer.py).
        """
        if count and count in self.rows:
            return self.rows[count][place].tokens_per_s
        drafted = [rows[place] for number, rows in self.rows.items() if number]
        first, tokens = (fmean(column) for column in zip(*map(_sizes, drafted), strict=True))
        base, each = self.step(place)
        return drafted[0].concurrency * tokens / (first + tokens / self.lengths[count] * (base + each * count))

    def step(self, place: int) -> tuple[float, float]:
        """Seconds of a step with 0 draft tokens, and of each further one, which cannot make it shorter."""
        seconds = {count: _step_s(rows[place]) for count, rows in self.rows.items() if count}
        slope, base = linear_regression(list(seconds), list(seconds.values())) if len(seconds) > 1 else (0.0, 0.0)
        return (max(base, SHORTEST_STEP), slope) if slope > 0 else (fmean(seconds.values()), 0.0)


def _sizes(row: Row) -> tuple[float, float]:
    """Seconds to the first token, and tokens of an answer."""
    return row.ttft_ms.mean / 1000 if row.ttft_ms else 0.0, row.output_tokens / row.requests


def _step_s(row: Row) -> float:
    """Seconds of a step, without those of the first token."""
    first, tokens = _sizes(row)
    steps = tokens / (row.acceptance_length or 1.0)
    return max((row.concurrency * tokens / row.tokens_per_s - first) / steps, SHORTEST_STEP)


@dataclass(frozen=True)
class Option:
    """Settings that can be proposed, and their predicted tokens/s by concurrency.

    `draft_tokens` are the most of one step, 0 without the drafter. `ranges` are a schedule: lowest concurrency, highest
    concurrency, draft tokens.
    """

    draft_tokens: int
    rates: tuple[float, ...]
    ranges: tuple[tuple[int, int, int], ...] = ()

    @property
    def title(self) -> str:
        """The option in words."""
        return f"schedule {self.schedule}" if self.ranges else title_of(self.draft_tokens)

    @property
    def schedule(self) -> str:
        """The value of DFLASH_SPEC_SCHEDULE; empty for a fixed number."""
        return ",".join(f"{low}:{count}" if low == top else f"{low}-{top}:{count}" for low, top, count in self.ranges)

    @property
    def settings(self) -> dict[str, str]:
        """The lines of `.env` for it, by name."""
        if not self.draft_tokens:
            return OFF
        return {**fixed(self.draft_tokens), Settings.dflash_spec_schedule.name: self.schedule}


def options(model: Model, *, max_num_seqs: int, scheduling: bool) -> list[Option]:
    """Everything that can be proposed: no drafter, each fixed number of draft tokens, and the best schedule.

    A schedule ends at `max_num_seqs`; `scheduling` says whether the engine knows schedules.
    """
    concurrency, counts = [row.concurrency for row in model.rows[0]], range(max(model.rows) + 1)
    places = range(len(concurrency))
    found = [Option(0, tuple(row.tokens_per_s for row in model.rows[0]))]
    found += [Option(count, tuple(model.rate(count, place) for place in places)) for count in counts[1:]]
    # of two that are as fast, the smaller one
    best = [max(counts, key=lambda count: model.rate(count, place)) for place in places]
    # one number throughout is a fixed one; 0 throughout runs the drafter without using it
    if scheduling and len(set(best)) > 1:
        ranges = tuple(_ranges(concurrency, best, max_num_seqs))
        found.append(Option(max(best), tuple(map(model.rate, best, places)), ranges))
    return found


def _ranges(concurrency: Sequence[int], counts: Sequence[int], max_num_seqs: int) -> Iterator[tuple[int, int, int]]:
    """The number for each concurrency, valid up to halfway to the next one; the last one up to max_num_seqs."""
    ends = [(here + after) // 2 for here, after in pairwise(concurrency)]
    ends.append(max(max_num_seqs, concurrency[-1]))
    first = 1
    for count, run in groupby(zip(ends, counts, strict=True), key=lambda one: one[1]):
        last = max(end for end, _ in run)
        yield first, last, count
        first = last + 1


def choose(found: Sequence[Option], current: Sequence[float]) -> Option:
    """The best option that is at no concurrency slower than without the drafter, within noise.

    If that one does not beat `current`, the rates of the present settings, it is the best option that is at no
    concurrency slower than those. Of two that are as good, the simpler one wins, in the order of `options`.
    """
    plain = next(option for option in found if not option.draft_tokens)
    best = fastest(option for option in found if is_nowhere_slower(option.rates, plain.rates))
    if gain_of(best.rates, current) > 1 + NOISE:
        return best
    return fastest((best, *(option for option in found if is_nowhere_slower(option.rates, current))))


def fastest(found: Iterable[Option]) -> Option:
    """The option with the highest geometric mean of tokens/s over the concurrencies."""
    return max(found, key=lambda option: geometric_mean(option.rates))


def is_nowhere_slower(rates: Iterable[float], than: Iterable[float]) -> bool:
    """Whether every rate is at least the other, within noise."""
    return all(rate >= (1 - NOISE) * other for rate, other in zip(rates, than, strict=True))


def gain_of(rates: Sequence[float], before: Sequence[float]) -> float:
    """The geometric mean of the ratios."""
    return geometric_mean(rate / other for rate, other in zip(rates, before, strict=True))


@dataclass(frozen=True)
class Verdict:
    """A proposal beside the present settings: mean gain, least gain at a concurrency, and how much two runs differ."""

    gain: float
    least: float
    noise: float

    @property
    def wins(self) -> bool:
        """Whether the gain is larger than noise."""
        return self.gain > 1 + self.noise


def verdict(runs: Sequence[Sequence[float]], current: Sequence[Sequence[float]]) -> Verdict:
    """The verdict on the runs of a proposal and those of the present settings, each the tokens/s by concurrency.

    If two runs of one setting differ by more than NOISE, so much more must be gained: the machine itself changes.
    """
    means, before = ([fmean(rates) for rates in zip(*one, strict=True)] for one in (runs, current))
    moved = [gain_of(one[-1], one[0]) for one in (runs, current)]
    noise = max(NOISE, *(max(one, 1 / one) - 1 for one in moved))
    return Verdict(gain_of(means, before), min(map(lambda ours, other: ours / other, means, before)), noise)
