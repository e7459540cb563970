"""The share of unified memory that an engine gets: what its sizes need, and no more than leaves the system its part."""

from __future__ import annotations

import math
from dataclasses import replace

from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.plan.cache_pool import Sizing, kinds_of, sequence_bytes
from dflash_deploy.plan.memory import GIB, fit

SHORT_CONTEXT = 8192
"""Tokens of context if many short requests are the goal, and of each sequence beside a long one."""

LEAST_SHARE = 0.5
"""The smallest share that a user of a DGX Spark publishes (hasso5703/dgx-spark-qwen38@719c17b, docs/gb10-memory.md).

A smaller one gains nothing on a machine for one engine, and the estimate of activations may be too low for it.
"""


def unified_share(pair: ModelPair, sizing: Sizing) -> tuple[float, str]:
    """The share of the memory for these sizes, in hundredths, and the reason with the GiB that the system keeps.

    `sizing.utilization` is the profile's upper value, `sizing.kept` the bytes that the system needs. The cache has room
    for one sequence of the full length beside others of SHORT_CONTEXT tokens.
    """
    whole, others = fit(pair, sizing), sizing.max_num_seqs - 1
    short = replace(sizing, max_model_len=min(SHORT_CONTEXT, sizing.max_model_len))
    cache = whole.sequence + others * sequence_bytes(kinds_of(pair, short))
    weights = whole.target + whole.drafter
    needed = weights + cache + (whole.reserve if sizing.reserve_within else 0)
    wanted, most = math.ceil(100 * needed / sizing.memory) / 100, round(whole.budget / sizing.memory, 2)
    # a share is not 0, whatever a tiny machine leaves
    share = max(min(max(wanted, LEAST_SHARE), most), 0.01)
    system = (sizing.memory * (1 - share) - (0 if sizing.reserve_within else whole.reserve)) / GIB
    remain = f"{system:.1f} of {sizing.memory / GIB:.1f} GiB remain for the system"
    if wanted > most and most < sizing.utilization:
        return share, f"{remain}; more for the engine would take the {sizing.kept / GIB:.0f} GiB that it needs"
    if wanted > most:
        return share, f"{remain}; the engine gets the profile's share"
    beside = f" beside {others} of {short.max_model_len}" if others else ""
    least = "the least that others run, with" if wanted < LEAST_SHARE else "the engine has"
    return share, f"{remain}; {least} room for a sequence of {sizing.max_model_len} tokens{beside}"
