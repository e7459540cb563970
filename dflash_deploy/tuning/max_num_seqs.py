"""Which other MAX_NUM_SEQS is worth measuring.

Requests beyond MAX_NUM_SEQS wait. More sequences give more tokens/s as long as each adds more than it costs a step.
Beyond that, fewer sequences are faster in total, with the other requests waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dflash_deploy.tuning.choose import NOISE

STILL_RISING = 1.1
"""Gain of the last step to MAX_NUM_SEQS below which twice as many are not worth a restart."""


def worth_trying(
    concurrency: Sequence[int], rates: Sequence[float], max_num_seqs: int, has_room: Callable[[int], bool]
) -> int | None:
    """Another MAX_NUM_SEQS, or `None` if the figures suggest no other. `rates` are tokens/s by rising concurrency.

    Fewer, if that concurrency was faster in total by more than noise. Twice as many, if the rate still rises at
    MAX_NUM_SEQS and `has_room` says that memory and max_num_batched_tokens allow it.
    """
    measured = dict(zip(concurrency, rates, strict=True))
    if max_num_seqs not in measured:
        return None
    best = max(concurrency, key=measured.__getitem__)
    if measured[best] > (1 + NOISE) * measured[max_num_seqs]:
        return best
    before = [count for count in concurrency if count < max_num_seqs]
    rising = bool(before) and measured[max_num_seqs] > STILL_RISING * measured[before[-1]]
    return 2 * max_num_seqs if rising and has_room(2 * max_num_seqs) else None
