"""vLLM 0.33.0 on a GPU that is not here: `python -m tests.support.decisions.simulated ANSWERS`.

Its Python files come from the released wheel; modules that are compiled are empty, and the platform answers with the
capability, the memory and the number of GPUs that a question names. Kernels are never called. Each question gets a
fork of the process, so that nothing of one answer is left in the next.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

# Extensions of the wheel.
COMPILED = (
    *("vllm._C", "vllm._C_stable_libtorch", "vllm._moe_C", "vllm._moe_C_stable_libtorch", "vllm._qutlass_C"),
    *("vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C"),
)

_FUSION = "vllm.compilation.passes.fusion"

# Modules that name compiled operators while they are imported. They change graphs, and no decision.
REPLACED = (
    "vllm.compilation.passes.pass_manager",
    # imported with several GPUs, for the sizes of a table
    *(f"{_FUSION}.{name}" for name in ("rms_quant_fusion", "matcher_utils")),
)

# A dependency of vLLM on CUDA that is not installed here; only its presence is asked for.
ABSENT = (
    *("flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils", "flashinfer.cascade"),
    *("flashinfer.comm", "flashinfer.fused_moe", "flashinfer.xqa"),
)

# Operators of the extension that say what its kernels can do on a capability (csrc/quantization, 0.33.0).
SUPPORTS: Mapping[str, Callable[[int], bool]] = {
    "cutlass_scaled_mm_supports_fp8": lambda capability: capability >= 89,
    "cutlass_scaled_mm_supports_block_fp8": lambda capability: capability >= 90,
    "cutlass_scaled_mm_supports_fp4": lambda capability: capability >= 100,
    "cutlass_group_gemm_supported": lambda capability: capability >= 90,
    "cutlass_sparse_scaled_mm_supported": lambda capability: capability == 90,
}

_MODELS = "vllm.model_executor.models"
_QUANTIZATION = "vllm.model_executor.layers.quantization"
_BACKENDS = "vllm.v1.attention.backends"

# Modules that most answers need, imported before the forks.
IMPORTED = (
    *("vllm.engine.arg_utils", "vllm.entrypoints.common.cli_args", "vllm.v1.attention.selector"),
    *(f"{_MODELS}.{name}" for name in ("qwen3_5", "qwen3_next", "qwen3_moe", "qwen3", "llama", "gpt_oss")),
    *(f"{_MODELS}.{name}" for name in ("gemma4_mm", "gemma4_unified", "muse_glimmer", "qwen3_dflash", "qwen3_dflash2")),
    *(f"{_QUANTIZATION}.{name}" for name in ("fp8", "modelopt", "mxfp4", "inc", "auto_awq", "auto_gptq", "online")),
    f"{_QUANTIZATION}.compressed_tensors.compressed_tensors",
    *("vllm.model_executor.model_loader.mtp_validation", f"{_MODELS}.deepseek_mtp", f"{_MODELS}.qwen3_dspark"),
    *("vllm.models.deepseek_v4.quant_config", "vllm.models.deepseek_v41.quant_config"),
    *("vllm.transformers_utils.configs.eagle", "vllm.v1.executor.uniproc_executor"),
    *(f"{_BACKENDS}.{name}" for name in ("flash_attn", "flashinfer", "triton_attn", "flex_attention")),
)

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny" / "target"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "video_preprocessor_config.json")

# What the processor of Kimi K2.5 reads.
MEDIA = {
    "merge_kernel_size": 2,
    "temporal_merge_kernel_size": 4,
    "patch_size": 14,
    "in_patch_limit": 256,
    "patch_limit_on_one_side": 512,
    "fixed_output_tokens": None,
    "in_patch_limit_each_frame": 256,
    "in_patch_limit_video": None,
    "sample_fps": 2.0,
    "max_num_frames_each_video": None,
    "timestamp_mode": "hh:mm:ss",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "config_type": "x",
}

_kept: list[object] = []  # libraries of operators, which live as long as their object


class _Stub(ModuleType):
    """A module in which every name can be found."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


def _stub(name: str) -> None:
    stub: Any = _Stub(name)
    stub.__spec__ = ModuleSpec(name, None, is_package=True)
    stub.__path__ = []
    stub.__file__ = "stub"
    stub.__version__ = "0.7.2"
    sys.modules[name] = stub


def _declare_operators() -> None:
    torch = importlib.import_module("torch")
    library = torch.library.Library("_C", "FRAGMENT")
    for name, supports in SUPPORTS.items():
        library.define(f"{name}(int capability) -> bool")
        library.impl(name, supports, "CompositeExplicitAutograd")
    _kept.append(library)


class _Gpu:
    """The GPU of the question that is answered now."""

    capability: tuple[int, ...] = (9, 0)
    name = "NVIDIA"
    memory = 80 << 30
    count = 8


def _set_platform() -> None:
    """Make vLLM's CUDA platform answer for `_Gpu`; it asks the driver for nothing else."""
    platforms = importlib.import_module("vllm.platforms")
    base: Any = importlib.import_module("vllm.platforms.cuda").CudaPlatformBase
    capability: Any = importlib.import_module("vllm.platforms.interface").DeviceCapability
    answers = {
        "get_device_capability": lambda *_, **__: capability(*_Gpu.capability),
        "get_device_name": lambda *_, **__: _Gpu.name,
        "get_device_total_memory": lambda *_, **__: _Gpu.memory,
        "get_device_uuid": lambda *_, **__: "GPU-0",
        "is_fully_connected": lambda *_, **__: True,
        "device_count": lambda *_, **__: _Gpu.count,
        "num_compute_units": lambda *_, **__: 100,
    }
    simulated = type("Simulated", (base,), {name: staticmethod(answer) for name, answer in answers.items()})
    setattr(platforms, "_current_platform", simulated())  # noqa: B010 - an attribute that vLLM sets at its first use
    # it inspects models in further processes, which would have the machine's own platform
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda inspect: inspect()


class _Warnings(logging.Handler):
    """Keeps vLLM's warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage()[:500])


def _answer(question: Mapping[str, Any], work: Path) -> dict[str, Any]:
    """What vLLM decides about one question, or its sentence."""
    asking: Any = importlib.import_module("dflash_deploy.serve.engines.vllm_question")
    _Gpu.capability = tuple(map(int, question["capability"].split(".")))
    _Gpu.name, _Gpu.memory, _Gpu.count = question["name"], question["memory"], question["gpus"]
    for role in ("target", "drafter"):
        (work / role).mkdir()
        (work / role / "config.json").write_text(json.dumps(question[role]))
    for file in TOKENIZER:
        # vLLM asks a model with images for its processor, which has a tokenizer; any will do
        shutil.copy(TINY / file, work / "target" / file)
    # Kimi K2.5 has its own key there, with these names; the numbers change no decision
    processor = json.loads((TINY / "preprocessor_config.json").read_text())
    (work / "target" / "preprocessor_config.json").write_text(json.dumps(processor | {"media_proc_cfg": MEDIA}))
    warnings = _Warnings()
    logging.getLogger("vllm").addHandler(warnings)
    try:
        config = asking.configuration(question["arguments"])
        decided = asking.decided(config)
        sizing: Any = importlib.import_module("tests.support.decisions.sizes")
        sizes = sizing.sizes(config) if question["sized"] else {}
    except SystemExit as refused:
        return {"refused": str(refused.code), "warnings": warnings.said}
    # all that the engine raises is its answer
    except Exception as problem:
        place = problem.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else ""
        said = asking.sentence(problem)
        return {"refused": said, "where": where, "kind": type(problem).__name__, "warnings": warnings.said}
    found = {name: str(value) for name, value in decided.items()}
    return {"decided": found, "sizes": sizes, "warnings": warnings.said}


def _in_fork(question: Mapping[str, Any]) -> dict[str, Any]:
    with TemporaryDirectory(prefix="dflash-decisions-") as directory:
        # the arguments name the directories of the models
        os.chdir(directory)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            answer = json.dumps(_answer(question, Path(directory))).encode()
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(answer)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            content = pipe.read()
        _, status = os.waitpid(child, 0)
        os.chdir("/")
    answered: dict[str, Any] = json.loads(content) if content else {"refused": f"the process ended with {status}"}
    return answered


def _prepare() -> None:
    """What every answer would do again: set up logging, import each quantization, name the classes of the models."""
    logger: Any = importlib.import_module("vllm.logger")
    # else the engine does it while it is asked, and its handlers replace the one that keeps its warnings
    logger.configure_logging_if_needed(importlib.import_module("vllm.config.logging").LoggingConfig())
    importlib.import_module(_QUANTIZATION).get_quantization_config("fp8")
    # forks share the pages of objects that no collection touches
    gc.collect()
    gc.freeze()


def main() -> None:
    """Answer the questions on standard input, a JSON list."""
    questions: list[dict[str, Any]] = json.load(sys.stdin)
    for name in (*COMPILED, *REPLACED, *ABSENT):
        _stub(name)
    _declare_operators()
    importlib.import_module("vllm.platforms")
    _set_platform()
    # without a driver vLLM replaces Triton; modules read this of the configurations of their kernels
    triton = importlib.import_module("vllm.triton_utils").triton
    triton.Config = lambda sizes, **given: SimpleNamespace(kwargs=sizes, **given)
    for module in IMPORTED:
        importlib.import_module(module)
    # a driver is needed to compile kernels, and Triton is there only with one
    setattr(importlib.import_module("vllm.config.vllm"), "HAS_TRITON", True)  # noqa: B010
    _prepare()
    answers = [_in_fork(question) for question in questions]
    Path(sys.argv[1]).write_text(json.dumps(answers), encoding="utf-8")
    os._exit(0)


if __name__ == "__main__":
    main()
