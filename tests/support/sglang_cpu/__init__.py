"""The real SGLang 0.5.23 with the tiny models on a processor: what its processes need, and a catalog with that engine.

SGLang's own CPU engine is for processors with AMX and needs compiled kernels, which no package index has. `site` has
stand-ins for them in torch, and patches for what is left. The rest is the released wheel.
"""

import os
from pathlib import Path

from tests.support.parsers.fetch import REPOSITORY, fetched

RELEASE = "sglang-0.5.23"
HERE = Path(__file__).parent
SITE = HERE / "site"

PROFILE = "cpu-sglang"  # the one profile of the catalog here


def environment() -> dict[str, str]:
    """The variables with which `dflash-deploy` finds SGLang installed beside its Python, and a profile for it."""
    return {
        "PYTHONPATH": os.pathsep.join(map(str, [SITE, fetched(RELEASE), REPOSITORY])),
        "DFLASH_CATALOG": str(HERE / "catalog"),
        # SGLang's own switch to its CPU engine
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
