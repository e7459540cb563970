"""A substitute for llama.cpp's image `server-b11515`, with the real server of the wheel of `xllamacpp` in it.

The wheel holds the server as a library. The program that runs it is the module of this project which does the same
natively; it reads the arguments with llama.cpp's own parser.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from dflash_deploy.serve.engines import llamacpp_wheel
from dflash_deploy.serve.engines.installed import package_directory
from tests.support.commands import checked
from tests.support.standin_base import ensure_debian

TAG = "dflash-standin/llamacpp-server:b11549"
DEBIAN = "dflash-standin/debian:bookworm"
SOURCES = Path(__file__).parent / "llamacpp_image"


def ensure_server_image() -> str:
    """The substitute's tag. Docker's cache makes a second build short."""
    ensure_debian(DEBIAN)
    wheel = package_directory("xllamacpp")
    assert wheel is not None, "xllamacpp is not installed: it is in the extra `llamacpp`"
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        shutil.copytree(SOURCES, context, dirs_exist_ok=True)
        shutil.copytree(wheel, context / "xllamacpp", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(llamacpp_wheel.__file__, context)
        # the container runs as any user, even if these files were made under a private umask
        for path in context.rglob("*"):
            path.chmod(0o755)
        checked("docker", "build", "--network=none", "--build-arg", f"DEBIAN={DEBIAN}", "-t", TAG, str(context))
    return TAG
