"""Checks at build time, and by `image verify`, that the engine of an image supports DFlash.

They search for files and for words in them: importing or starting an engine needs hardware that a build machine lacks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dflash_deploy.serve.engines.llamacpp import LLAMA_SERVER
from dflash_deploy.serve.launch import engine_here


def shortcomings(environment: Mapping[str, str] = os.environ, server: Path = Path(LLAMA_SERVER)) -> list[str]:
    """What this installation lacks for DFlash; empty if nothing. Raises Refused for an unknown engine."""
    return engine_here(environment).shortcomings(server)


if __name__ == "__main__":
    found = shortcomings()
    for line in found:
        print(f"dflash: {line}", file=sys.stderr)
    sys.exit(1 if found else 0)
