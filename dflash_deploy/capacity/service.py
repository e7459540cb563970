"""How one engine serves requests: the time of a step by the sequences in it, and what a prompt adds.

An engine computes in steps. A step yields `tokens_per_step` tokens for each sequence that is decoded; the tokens of new
prompts are computed in the same steps, and make them longer.

A prompt may take more steps than its tokens need: llama.cpp computes the last tokens of a prompt in a step of their own
if the model has recurrent layers (it keeps the state before them). Beside other sequences that step has their time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

SHORTEST_STEP = 1e-6
"""Shortest step in seconds: noise in measured times must not make a step free."""


@dataclass(frozen=True)
class Service:
    """The service of one engine. `steps` are sequences and seconds of a step, both rising.

    `prompt_token_s` are the seconds that each token of a prompt adds to a step, `latency_s` those of a request outside
    of the engine's steps. `most_sequences` sequences run at the same time; `chunk` tokens fit into a step. The first
    token of an answer comes with step `prompt_steps` of its prompt, or later if its tokens need more. Further steps
    have only the time of the sequences beside it.
    """

    steps: tuple[tuple[float, float], ...]
    tokens_per_step: float
    prompt_token_s: float
    latency_s: float
    most_sequences: int
    chunk: int
    prompt_steps: int = 1

    @property
    def most_known(self) -> float:
        """The most sequences in a step whose time is known; beyond it is an extrapolation."""
        return self.steps[-1][0]

    def step_s(self, sequences: float) -> float:
        """Seconds of a step. Beyond the known steps each sequence adds as much as between the last two.

        If only one is known, the time beyond it is proportional to the sequences.
        """
        first, last = self.steps[0], self.steps[-1]
        if sequences <= first[0]:
            return first[1]
        if sequences > last[0]:
            before = self.steps[-2] if len(self.steps) > 1 else (0.0, 0.0)
            return _between(before, last, sequences)
        below, above = next(pair for pair in pairwise(self.steps) if sequences <= pair[1][0])
        return _between(below, above, sequences)

    def token_s(self, sequences: float) -> float:
        """Seconds between two tokens of a sequence, while no prompt is computed."""
        return self.step_s(sequences) / self.tokens_per_step


def rising(steps: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The steps by their sequences: one with more sequences takes at least as long as those with fewer."""
    kept: list[tuple[float, float]] = []
    for sequences, seconds in sorted(steps):
        longest = max(seconds, SHORTEST_STEP, *(known for _, known in kept))
        if kept and kept[-1][0] == sequences:
            kept.pop()
        kept.append((sequences, longest))
    return tuple(kept)


def _between(below: tuple[float, float], above: tuple[float, float], sequences: float) -> float:
    """The line through two steps, also beyond the second."""
    slope = (above[1] - below[1]) / (above[0] - below[0])
    return above[1] + slope * (sequences - above[0])
