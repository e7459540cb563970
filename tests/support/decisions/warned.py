"""What vLLM warns of about the plans, and why a plan says nothing of it."""

from __future__ import annotations

import re

# Beginnings of warnings, as patterns, and the reason.
EXPLAINED = {
    r"Add \d+ padding layers, may waste": "the plan's memory counts the padding; `test_memory.py` compares it",
    r"Forcing --disable_chunked_mm_input": "vLLM changes the setting itself: an image is read in one step",
    r"Auto-disabled DeepGemm": "vLLM chooses other kernels; no setting is lost",
    r"max_num_batched_tokens \(\d+\) exceeds max_num_seqs \* max_model_len": "the profile's number; steps stay smaller",
    r"max_num_scheduled_tokens is set to \d+": "more tokens per step leave no memory for a sequence",
    r"sets `supports_pp=True`, but does not accept": "about pipeline parallelism, which no plan uses",
}


def explanation(warning: str) -> str | None:
    """Why the plan need not repeat a warning; `None` if it must."""
    return next((reason for pattern, reason in EXPLAINED.items() if re.search(pattern, warning)), None)
