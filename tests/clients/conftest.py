"""One endpoint with a context that agents need, and whether the runs are compared or recorded."""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.planning import plan_of
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port
from tests.support.server import Server

CONTEXT = 65536  # tokens; agents send up to 45,000 of the tiny pair's at once

# A chat template for the tiny pair that shows the model its tools, as its own does not.
TEMPLATE = Path(__file__).with_name("tools.jinja")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of this tier."""
    parser.addoption("--record", action="store_true", help="newest versions; write docs/reference/clients.yaml")
    parser.addoption("--engine", choices=("llamacpp", "vllm"), default="llamacpp")


def long_gguf(directory: Path) -> tuple[str, ...]:
    """The tiny pair as GGUF with a raised context; the options that serve it."""
    for name in ("target.gguf", "drafter.gguf", "mmproj.gguf"):
        content = bytearray(asset(f"models/tiny/gguf/{name}").read_bytes())
        key = b".context_length"
        if (found := content.find(key)) >= 0:
            # behind the key is the type of its value, in 4 bytes
            struct.pack_into("<I", content, found + len(key) + 4, CONTEXT)
        (directory / name).write_bytes(content)
    own = ("--model", str(directory / "target.gguf"), "--drafter", str(directory / "drafter.gguf"))
    return ("--engine", "llamacpp", *own)


def long_safetensors(directory: Path) -> tuple[str, ...]:
    """The tiny pair for vLLM with a raised context and a template with tools; the options that serve it."""
    for name in ("target", "drafter"):
        shutil.copytree(asset(f"models/tiny/{name}"), directory / name)
        config = directory / name / "config.json"
        said = json.loads(config.read_text())
        (said.get("text_config") or said)["max_position_embeddings"] = CONTEXT
        config.write_text(json.dumps(said))
    shutil.copy(TEMPLATE, directory / "target" / "chat_template.jinja")
    return ("--engine", "vllm", "--model", str(directory / "target"), "--drafter", str(directory / "drafter"))


@pytest.fixture(scope="session")
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An endpoint with tools and a long context."""
    directory, weights = tmp_path_factory.mktemp("endpoint"), tmp_path_factory.mktemp("weights")
    # the option is there if this folder was named to pytest
    llamacpp = request.config.getoption("engine", "llamacpp") == "llamacpp"
    served = (long_gguf if llamacpp else long_safetensors)(weights)
    sizes = ("--max-model-len", str(CONTEXT), "--port", str(free_port()))
    dflash("init", "--profile", "cpu", "--runtime", "native", *served, *sizes, at=directory).succeeded()
    edit_env(directory, SERVED_MODEL_NAME="tiny")
    if llamacpp:
        edit_env(directory, EXTRA_ARGS=f"'--image-max-tokens 64 --chat-template-file {TEMPLATE}'")
    else:
        edit_env(directory, TOOL_CALL_PARSER="qwen3_coder")
    dflash("up", at=directory).succeeded()
    yield Server(directory)
    dflash("down", at=directory).succeeded()


@pytest.fixture(scope="session")
def engine(endpoint: Server) -> str:
    """The engine and its release, as docs/reference/clients.yaml names it."""
    chosen = plan_of(Deployment.existing(endpoint.directory)).engine
    return f"{chosen.kind.title} {chosen.version}"
