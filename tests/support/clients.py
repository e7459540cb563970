"""Other people's clients, from the Python package index, each in a folder of its own beside the engine's packages."""

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.parsers.fetch import REPOSITORY

CACHE = REPOSITORY / ".cache" / "clients"

PACKAGES = {
    # without their dependencies: the CPU engine's environment has nearly all, and these are the others
    "litellm-1.109.1": (
        "litellm==1.109.1",
        "fastuuid==0.14.0",
        "importlib_metadata==8.9.0",
        "zipp==4.1.2",
        "h2==4.4.1",
        "hpack==4.2.0",
        "hyperframe==6.1.0",
    ),
    # the last release that sends its key as x-api-key by default; the installed one sends Authorization: Bearer
    "anthropic-1.17.0": ("anthropic==1.17.0",),
    "dflash-0.1.0-with-datasets-5.0.1": (
        "dflash==0.1.0",
        "datasets==5.0.1",
        "multiprocess==0.70.19",
        "pandas==3.1.1",
        "pyarrow==26.0.1",
        "python-dateutil==4.0.0",
        "pytz==2026.6",
        "six==1.17.0",
        "tzdata==2026.6",
        "xxhash==4.1.0",
    ),
}


def client(name: str) -> Path:
    """The folder to put on PYTHONPATH; it is complete if it is there."""
    folder = CACHE / name
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=CACHE) as work:
        made = Path(work) / "made"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", f"--target={made}"]
        done = subprocess.run([*pip, *PACKAGES[name]], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"pip could not install {name}:\n{done.stderr[-2000:]}")
        # whoever renames second finds the folder there, complete
        with contextlib.suppress(OSError):
            made.rename(folder)
    return folder
