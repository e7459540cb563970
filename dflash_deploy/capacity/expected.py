"""The service of an engine as the speed model expects it, without a measurement."""

from __future__ import annotations

from itertools import takewhile

from dflash_deploy.capacity.service import Service, rising
from dflash_deploy.catalog import ModelPair, Profile
from dflash_deploy.plan.speed import acceptance_range, prompt_token_seconds, step_seconds


def expected_service(
    profile: Profile, pair: ModelPair, *, draft_tokens: int, most_sequences: int, chunk: int, prompt_steps: int = 1
) -> Service | None:
    """The service with `draft_tokens`, 0 without a drafter; `None` on a machine without a GPU.

    The acceptance length is the geometric mean of the expected range. Nothing is known of the time outside of the
    engine: it is 0.
    """
    if profile.match.gpus == 0:
        return None
    low, high = acceptance_range(pair, draft_tokens) if draft_tokens else (1.0, 1.0)
    places = {1, most_sequences, *takewhile(lambda number: number < most_sequences, (2**power for power in range(20)))}
    steps = [
        (float(number), step_seconds(profile, pair, concurrency=number, draft_tokens=draft_tokens)) for number in places
    ]
    return Service(
        steps=rising(steps),
        tokens_per_step=(low * high) ** 0.5,
        prompt_token_s=prompt_token_seconds(profile, pair),
        latency_s=0.0,
        most_sequences=most_sequences,
        chunk=chunk,
        prompt_steps=prompt_steps,
    )
