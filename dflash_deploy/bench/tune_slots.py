"""How many sequences an engine answers at the same time: which other number is worth measuring.

Requests beyond MAX_NUM_SEQS wait. More of them bring more tokens/s as long as they bring more than they cost a step;
from there on fewer, with the others waiting, are faster for everybody together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dflash_deploy.bench.tune_choose import NOISE

STILL_RISING = 1.1
"""What the last step to all slots must have gained: below that twice as many are not worth a restart."""


def worth_trying(
    streams: Sequence[int], rates: Sequence[float], slots: int, has_room: Callable[[int], bool]
) -> int | None:
    """Another MAX_NUM_SEQS, or `None` where nothing speaks for one. `rates` are tokens/s by rising numbers of streams.

    Fewer, where so many were faster together than all slots by more than noise; twice as many, where the rate still
    rises at the last slot and `has_room` says that memory and token budget allow it.
    """
    measured = dict(zip(streams, rates, strict=True))
    if slots not in measured:
        return None
    best = max(streams, key=measured.__getitem__)
    if measured[best] > (1 + NOISE) * measured[slots]:
        return best
    before = [count for count in streams if count < slots]
    rising = bool(before) and measured[slots] > STILL_RISING * measured[before[-1]]
    return 2 * slots if rising and has_room(2 * slots) else None
