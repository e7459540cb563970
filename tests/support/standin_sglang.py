"""A stand-in for SGLang's image on machines that reach no image registry and have no GPU.

It has the Python files of the released SGLang, unchanged, and what they import. Its compiled kernels need CUDA: SGLang
starts here, reads its arguments, and ends when it looks for a GPU.
"""

import shutil
import sys
from pathlib import Path

from dflash_deploy.serve.engines.installed import CPU_SITE
from tests.support.commands import checked
from tests.support.parsers.fetch import fetched

TAG = "dflash-standin/sglang:0.5.23"
RELEASE = "sglang-0.5.23"

# What SGLang imports at its start and vLLM does not, at versions that went together.
PACKAGES = (
    *("orjson==3.13.0", "gguf==0.19.0", "ipython==9.18.1", "ipython-pygments-lexers==1.1.1", "traitlets==5.16.1"),
    *("stack-data==0.6.3", "executing==2.3.0", "asttokens==3.0.2", "pure-eval==0.2.4", "prompt-toolkit==3.0.53"),
    *("wcwidth==0.9.4", "matplotlib-inline==0.2.2", "pexpect==4.9.0", "ptyprocess==0.7.0", "pygments==2.21.0"),
)

# Folders of SGLang that a server for language models does not import.
LEFT_OUT = ("multimodal_gen", "test", "benchmark")

DOCKERFILE = """\
FROM {base}
COPY packages/ /usr/local/lib/python3.11/dist-packages/
"""


def ensure_base(base_image: str, place: Path) -> str:
    """Build it on the stand-in for vLLM's image, which has torch and Triton; returns its tag."""
    packages = place / "packages"
    shutil.copytree(fetched(RELEASE), packages, ignore=shutil.ignore_patterns(*LEFT_OUT))
    checked(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary=:all:"),
        *(f"--target={packages}", *PACKAGES),
    )
    # SGLang looks for the sources of its kernels before it compiles one
    for name in ("csrc", "include"):
        (packages / "sglang/kernels/jit" / name).mkdir(exist_ok=True)
    # the index has torchvision for CUDA only; what lets vLLM's build for the CPU import it helps here too
    shutil.copy(CPU_SITE / "sitecustomize.py", packages / "without_cuda.py")
    (packages / "without_cuda.pth").write_text("import without_cuda\n")
    (place / "Dockerfile").write_text(DOCKERFILE.format(base=base_image))
    checked("docker", "build", "--tag", TAG, str(place), timeout=900)
    return TAG
