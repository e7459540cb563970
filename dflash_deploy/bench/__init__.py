"""Measuring speed: how fast a served model answers at a concurrency, and how many of its drafts are accepted."""

from dflash_deploy.bench.load import Load, Round, measure
from dflash_deploy.bench.prompts import Prompt, load_prompts

__all__ = ["Load", "Prompt", "Round", "load_prompts", "measure"]
