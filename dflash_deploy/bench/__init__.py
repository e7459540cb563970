"""Measuring speed: tokens per second of a served model under a number of streams."""

from dflash_deploy.bench.load import Load, measure
from dflash_deploy.bench.prompts import Prompt, load_prompts

__all__ = ["Load", "Prompt", "load_prompts", "measure"]
