"""Weights: download them from the Hugging Face Hub, verify them, and check them before an engine starts."""

from dflash_deploy.weights.check import check_weights
from dflash_deploy.weights.checkpoints import read_checkpoints

__all__ = ["check_weights", "read_checkpoints"]
