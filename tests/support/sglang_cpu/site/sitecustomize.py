"""SGLang 0.5.23 on a processor without AMX, active in each process that has this directory on PYTHONPATH.

`sgl_kernel`, beside this file, has stand-ins in torch for the compiled kernels. The patches here let SGLang take its
branches in torch in place of Triton kernels, and let the product find SGLang beside its Python. They are applied by
the finder of vLLM's `cpu_site`, which also declares the operators of torchvision: only to source that holds exactly the
known lines.

What differs from SGLang on a GPU: with drafts and a temperature it takes the most likely token (it says so in its log).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).parents[4]

PATCHES: dict[str, dict[str, str]] = {
    # attention in torch is offered for the target only
    "sglang.srt.arg_groups.choices": {
        '    "intel_xpu",\n]\n\nDETERMINISTIC': '    "intel_xpu",\n    "torch_native",\n]\n\nDETERMINISTIC',
    },
    # DFLASH is refused for any device but CUDA, NPU and XPU
    "sglang.srt.arg_groups.speculative_hook": {
        '    algorithm = "DFLASH"\n    if current_platform.is_out_of_tree():\n': (
            '    algorithm = "DFLASH"\n'
            '    if cfg.device == "cpu":\n'
            "        is_supported = True\n"
            "    elif current_platform.is_out_of_tree():\n"
        ),
    },
    # a processor has no streams
    "sglang.srt.speculative.dflash_worker_v2": {
        "        batch.seq_lens.record_stream(\n"
        "            torch.get_device_module(self.device).current_stream()\n"
        "        )\n": "\n\n\n",
    },
    # Without AMX, what follows is a Triton kernel: the gated norm of the delta net
    "sglang.kernels.ops.attention.fla.layernorm_gated": {
        "_use_cpu = is_cpu() and cpu_has_amx_support()": "_use_cpu = is_cpu()",
    },
    # the drafter's norm and rotation of queries and keys, whose branch in torch is the next one
    "sglang.srt.models.dflash": {
        "        elif self.use_table_qk_norm_rope and qkv.dtype == torch.bfloat16:\n": (
            "        elif self.use_table_qk_norm_rope and qkv.is_cuda:\n"
        ),
    },
    # the states after the draft tokens that were accepted
    "sglang.kernels.ops.mamba.mamba_state_scatter_triton": {
        "def scatter_mamba_states_after_mtp_verify(": (
            "from sgl_kernel.mamba import scatter_states_cpu as scatter_mamba_states_after_mtp_verify\n\n\n"
            "def _scatter_with_triton("
        ),
    },
    # attention in torch takes no lengths from a step that verifies drafts
    "sglang.srt.layers.attention.torch_native_backend": {
        "            forward_batch.seq_lens,\n"
        "            forward_batch.extend_prefix_lens,\n"
        "            forward_batch.extend_seq_lens,\n": "            *lengths_cpu(forward_batch),\n",
        "from sglang.srt.layers.attention.base_attn_backend import AttentionBackend\n": (
            "from sgl_kernel import lengths_cpu\n"
            "from sglang.srt.layers.attention.base_attn_backend import AttentionBackend\n"
        ),
    },
    # the native runtime has vLLM and llama.cpp only
    "dflash_deploy.serve.engines.sglang": {
        "    def shortcomings(self, server: Path) -> list[str]:\n": (
            "    def installed(self, settings: Settings | None = None):\n"
            '        """SGLang beside this Python."""\n'
            "        from dflash_deploy.serve.engines.installed import InstalledEngine\n\n"
            '        return InstalledEngine("sglang", metadata.version("sglang"), True)\n\n'
            "    def shortcomings(self, server: Path) -> list[str]:\n"
        ),
    },
}


class _BeforeSglang(MetaPathFinder):
    """Runs once, just before SGLang is imported, and finds nothing itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Replace the packages that are missing; always `None`."""
        if fullname == "sglang":
            sys.meta_path.remove(self)
            # this one is installed
            importlib.import_module("orjson")
            importlib.import_module("tests.support.parsers.absent").stub_absent()
        return None


def _cpu_site() -> ModuleType:
    file = REPOSITORY / "dflash_deploy" / "serve" / "cpu_site" / "sitecustomize.py"
    spec = importlib.util.spec_from_file_location("cpu_site", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_cpu_site()._PATCHES.update(PATCHES)
sys.meta_path.insert(0, _BeforeSglang())
