"""Decides which settings to propose, from the predictions for every number of draft tokens."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Annotated, Literal

from dflash_deploy.document import Count, Documented, Keywords, Rate, Ratio, shown
from dflash_deploy.serve.settings import Settings
from dflash_deploy.tuning.experiment import mtp_head, title_of, title_of_head
from dflash_deploy.tuning.model import Model

NOISE = 0.02
"""How much two measurements of one setting may differ. Smaller gains are not proposed, smaller losses are ignored."""

NO_HEADS: Mapping[int, Sequence[float]] = {}

Kind = Literal["off", "fixed", "mtp", "schedule"]


@dataclass(frozen=True)
class Option(Documented):
    """Settings that can be proposed, with their predicted speed. Those of the kind `mtp` were measured."""

    kind: Kind
    """`off`: no drafter. `fixed`: one number of draft tokens. `mtp`: the MTP head. `schedule`: by concurrency."""
    draft_tokens: Count
    """Most draft tokens of one step; 0 without the drafter."""
    rates: tuple[Rate, ...]
    """Predicted tokens per second by concurrency, in rising order."""
    ranges: tuple[Annotated[tuple[Count, ...], Keywords(minItems=3, maxItems=3)], ...] = ()
    """The schedule: lowest concurrency, highest concurrency, draft tokens. Empty if there is none."""

    @property
    @shown
    def title(self) -> str:
        """The option in words. The text may change."""
        if self.kind == "off":
            return "no drafter"
        if self.kind == "mtp":
            return title_of_head(self.draft_tokens)
        return f"schedule {self.schedule}" if self.ranges else title_of(self.draft_tokens)

    @property
    def schedule(self) -> str:
        """The value of DFLASH_SPEC_SCHEDULE; empty for a fixed number."""
        return ",".join(
            f"{first}:{tokens}" if first == last else f"{first}-{last}:{tokens}" for first, last, tokens in self.ranges
        )

    @property
    @shown
    def settings(self) -> dict[str, str]:
        """The lines of `.env` for it, by name."""
        if self.kind == "off":
            return {Settings.dflash_drafter.name: "off"}
        if self.kind == "mtp":
            return mtp_head(self.draft_tokens)
        return {
            Settings.dflash_num_spec_tokens.name: str(self.draft_tokens),
            Settings.dflash_spec_schedule.name: self.schedule,
        }

    @property
    @shown
    def score(self) -> Rate:
        """Geometric mean of `rates`."""
        return statistics.geometric_mean(self.rates)


def options(
    model: Model, *, max_num_seqs: int, scheduling: bool, heads: Mapping[int, Sequence[float]] = NO_HEADS
) -> list[Option]:
    """Everything that can be proposed: no drafter, each fixed number of draft tokens, MTP head, and the best schedule.

    A schedule ends at `max_num_seqs`. `scheduling` says whether the engine knows schedules. `heads` are the measured
    tokens/s with the MTP head, by its draft tokens.
    """
    found = [Option("off", 0, tuple(map(model.plain, model.streams)))]
    found += [
        Option("fixed", tokens, tuple(model.rate(tokens, streams) for streams in model.streams))
        for tokens in range(1, model.most + 1)
    ]
    found += [Option("mtp", tokens, tuple(rates)) for tokens, rates in heads.items()]
    best = [_best(model, streams) for streams in model.streams]
    # one number throughout is a fixed one; 0 throughout runs the drafter without using it
    if scheduling and len(set(best)) > 1:
        rates = tuple(model.rate(tokens, streams) for tokens, streams in zip(best, model.streams, strict=True))
        found.append(Option("schedule", max(best), rates, tuple(_ranges(model.streams, best, max_num_seqs))))
    return found


def choose(found: Sequence[Option], current: Sequence[float]) -> Option:
    """The best option that is at no concurrency slower than without the drafter, within noise.

    If that one does not beat `current`, the rates of the present settings, it is the best option that is at no
    concurrency slower than those. Of two that are as good, the simpler one wins, in the order of `options`.
    """
    plain = next(option for option in found if option.kind == "off")
    best = _fastest(option for option in found if is_nowhere_slower(option.rates, plain.rates))
    if compared(best.rates, current).wins:
        return best
    return _fastest((best, *(option for option in found if is_nowhere_slower(option.rates, current))))


def _fastest(found: Iterable[Option]) -> Option:
    return max(found, key=lambda option: option.score)


def passed_over(found: Sequence[Option], chosen: Option) -> Option | None:
    """An option that is faster overall than the chosen one by more than noise, but slower at some concurrency."""
    best = _fastest(found)
    return best if best.score > (1 + NOISE) * chosen.score else None


@dataclass(frozen=True)
class HeadComparison(Documented):
    """The best setting of the target's MTP head, compared with the best one of the drafter."""

    head: str
    """The setting of the MTP head, in words. The text may change."""
    drafter: str
    """The setting of the drafter, in words. The text may change."""
    gain: Ratio
    """Geometric mean, over the concurrencies, of the tokens/s of the MTP head divided by those of the drafter."""
    least: Ratio
    """The smallest of these ratios."""
    most: Ratio
    """The largest of these ratios."""

    @property
    @shown
    def better(self) -> bool:
        """Whether the MTP head is faster overall by more than noise."""
        return self.gain > 1 + NOISE

    @property
    @shown
    def sentence(self) -> str:
        """The comparison in words. The text may change."""
        found = "the better choice" if self.better else "not the better choice"
        times = f"{self.gain:.2f} times as fast ({self.least:.2f} to {self.most:.2f} by concurrency)"
        return f"{self.head}: {times} as the drafter with {self.drafter}: {found}"


def compare_head(found: Iterable[Option]) -> HeadComparison | None:
    """MTP head and drafter, each at its best; `None` if the MTP head was not measured."""
    kept = tuple(found)
    heads = [option for option in kept if option.kind == "mtp"]
    drafters = [option for option in kept if option.kind in {"fixed", "schedule"}]
    if not heads or not drafters:
        return None
    head, drafter = _fastest(heads), _fastest(drafters)
    ratios = [ours / theirs for ours, theirs in zip(head.rates, drafter.rates, strict=True)]
    gain = statistics.geometric_mean(ratios)
    return HeadComparison(head.title, drafter.title, gain, min(ratios), max(ratios))


def is_nowhere_slower(rates: Iterable[float], than: Iterable[float]) -> bool:
    """Whether every rate is at least the other, within noise."""
    return all(rate >= (1 - NOISE) * other for rate, other in zip(rates, than, strict=True))


@dataclass(frozen=True)
class Verdict(Documented):
    """The measured proposal compared with the present settings."""

    gain: Ratio
    """Geometric mean, over the concurrencies, of its tokens/s divided by those of the present settings."""
    least: Ratio
    """The smallest of these ratios."""
    noise: Ratio = NOISE
    """Share by which two runs of one setting differ."""

    @property
    @shown
    def wins(self) -> bool:
        """Whether the gain is larger than noise."""
        return self.gain > 1 + self.noise


def compared(rates: Sequence[float], current: Sequence[float]) -> Verdict:
    """The verdict on a proposal; both were measured at the same concurrency."""
    ratios = [rate / before for rate, before in zip(rates, current, strict=True)]
    return Verdict(statistics.geometric_mean(ratios), min(ratios))


def between(before: Sequence[float], rates: Sequence[float], after: Sequence[float]) -> Verdict:
    """The verdict if the present settings were measured before and after the proposal.

    The proposal is compared with their mean. If the two differ by more than noise, so much more must be gained: the
    machine may have become faster meanwhile.
    """
    means = [statistics.fmean(both) for both in zip(before, after, strict=True)]
    moved = compared(after, before).gain
    found = compared(rates, means)
    return Verdict(found.gain, found.least, max(NOISE, abs(moved - 1), abs(1 / moved - 1)))


def _best(model: Model, streams: int) -> int:
    """The fastest number of draft tokens with the drafter running; of two that are as fast, the smaller one."""
    return max(range(model.most + 1), key=lambda tokens: model.rate(tokens, streams))


def _ranges(streams: Sequence[int], tokens: Sequence[int], max_num_seqs: int) -> Iterator[tuple[int, int, int]]:
    """The number for each concurrency, valid up to halfway to the next one; the last one up to max_num_seqs."""
    ends = [(here + after) // 2 for here, after in pairwise(streams)]
    ends.append(max(max_num_seqs, streams[-1]))
    first = 1
    for number, run in groupby(zip(ends, tokens, strict=True), key=lambda pair: pair[1]):
        last = max(end for end, _ in run)
        yield first, last, number
        first = last + 1
