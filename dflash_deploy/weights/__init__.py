"""Weights on disk: are they there, and whole enough to be worth starting an engine for?"""

from dflash_deploy.weights.check import check_weights
from dflash_deploy.weights.checkpoints import read_checkpoints

__all__ = ["check_weights", "read_checkpoints"]
