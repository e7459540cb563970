"""Weights: download them from the Hugging Face Hub, verify them, and check them before an engine starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.weights.check import check_weights
    from dflash_deploy.weights.checkpoints import read_checkpoints
else:
    __getattr__ = lazily(
        __name__,
        {
            ".check": ("check_weights",),
            ".checkpoints": ("read_checkpoints",),
        },
    )

__all__ = ["check_weights", "read_checkpoints"]
