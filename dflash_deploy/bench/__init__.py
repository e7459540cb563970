"""Measuring speed: how fast a served model answers at a concurrency, and how many of its drafts are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.bench.load import Load, Round, measure
    from dflash_deploy.bench.prompts import Prompt, load_prompts
else:
    __getattr__ = lazily(
        __name__,
        {
            ".load": ("Load", "Round", "measure"),
            ".prompts": ("Prompt", "load_prompts"),
        },
    )

__all__ = ["Load", "Prompt", "Round", "load_prompts", "measure"]
