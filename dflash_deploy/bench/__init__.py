"""Measuring speed: how fast a served model answers under a number of streams, and how its drafts fare."""

from dflash_deploy.bench.load import Load, Round, measure
from dflash_deploy.bench.prompts import Prompt, load_prompts

__all__ = ["Load", "Prompt", "Round", "load_prompts", "measure"]
