"""Whether the CPU engine's processes yield their core while they wait for each other.

Run as a script in a process with the patches; prints what it found as JSON. The argument `unpatched` takes the module
as it is installed.
"""

import json
from unittest.mock import patch

from tests.support.cpu_modules import engine_module

MODULE = "vllm.distributed.utils"


def main() -> None:
    """Wait once as the engine does, and print whether that was a yield."""
    module = engine_module(MODULE)
    with patch("os.sched_yield") as yielded:
        module.sched_yield()
    print(json.dumps({"yields": yielded.call_count}))


if __name__ == "__main__":
    main()
