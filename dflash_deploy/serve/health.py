"""The container's health check, without curl: is the engine's process alive and listening?

Liveness only. Whether it can generate is asked by `dflash-deploy up`, `status` and `test`.
"""

from __future__ import annotations

import os
import sys
from urllib.error import URLError
from urllib.request import urlopen


def alive(port: int, *, timeout: float = 5.0) -> bool:
    """Whether GET /health on this machine answers 200 within `timeout` seconds."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=timeout) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(0 if alive(int(os.environ.get("DFLASH_PORT", "8000"))) else 1)
