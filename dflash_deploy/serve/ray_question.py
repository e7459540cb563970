"""`python -m dflash_deploy.serve.ray_question HOST:PORT`: what the Ray beside the engine sees of a cluster that runs.

It connects as vLLM will, as a driver, and starts nothing: an address is always given. Its answer has the form of
`dflash_deploy.serve.answer`.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from dflash_deploy.serve import answer


def main(address: str) -> NoReturn:
    """Write one answer, and end without waiting for Ray's threads."""
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]
    except ImportError as problem:
        answer.unaskable(f"Ray is not installed beside the engine: {problem}")
        os._exit(0)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
        nodes = [node for node in ray.nodes() if node["Alive"]]
    # Ray raises RuntimeError, ConnectionError and ValueError, and its own errors
    except Exception as problem:
        answer.refused(f"{type(problem).__name__}: {problem}")
    else:
        gpus = sum(node["Resources"].get("GPU", 0) for node in nodes)
        answer.accepted({"version": ray.__version__, "nodes": len(nodes), "gpus": int(gpus)})
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
