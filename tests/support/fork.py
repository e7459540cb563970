"""The buun fork of llama.cpp: where its server and its converter are, and its drafter of the tiny pair.

No package index has the fork. Tests look for `llama-server` and `convert/` in the directory that DFLASH_TEST_BUUN
names, else in ../shared/engines/buun beside the repository.

    python -m tests.support.fork SOURCES DRAFTER.gguf
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.llamacpp_server import KIND, PRE_TOKENIZER, TINY
from tests.support.parsers.fetch import REPOSITORY

VARIABLE = "DFLASH_TEST_BUUN"
BESIDE = REPOSITORY.parent / "shared" / "engines" / "buun"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def fork_or_skip(part: str) -> Path:
    """A file or directory of the fork; the test is skipped if it is missing."""
    found = Path(os.environ.get(VARIABLE) or BESIDE) / part
    if not found.exists():
        pytest.skip(
            f"THE BUUN FORK DID NOT RUN: {found} is missing; no package index has it ({VARIABLE} names its place)"
        )
    return found


def convert(directory: Path, converter: Path) -> Path:
    """Write the drafter with the fork's converter, which expects the target's tokenizer beside it."""
    sources, made = directory / "drafter", directory / "drafter.gguf"
    shutil.copytree(TINY / "drafter", sources)
    for name in TOKENIZER:
        shutil.copy(TINY / "target" / name, sources)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.fork", str(sources), str(made)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(converter), str(REPOSITORY)])},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return made


def _convert_here(sources: str, made: str) -> None:
    program = next(Path(place) / "convert_hf_to_gguf.py" for place in sys.path if Path(place).name == "convert")
    specification = importlib.util.spec_from_file_location("convert_hf_to_gguf", program)
    assert specification is not None
    assert specification.loader is not None
    converter = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = converter
    specification.loader.exec_module(converter)
    converter.TextModel.get_vocab_base_pre = lambda model, tokenizer: PRE_TOKENIZER
    sys.argv = [str(program), sources, "--outtype", KIND, "--outfile", made]
    converter.main()


if __name__ == "__main__":
    _convert_here(*sys.argv[1:])
