"""From the environment to the process that becomes the engine: its command line and its variables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata

from dflash_deploy.serve.arguments import engine_arguments
from dflash_deploy.serve.engine import installed_engine
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import api_keys, read_secrets
from dflash_deploy.serve.settings import EngineName, Settings, read_settings

FAMILY = "DFLASH_ENGINE_FAMILY"
"""Which engine an image holds; its Dockerfile says so. Absent: vLLM."""

LLAMA_SERVER = "/app/llama-server"
"""Where llama.cpp's images have it."""


@dataclass(frozen=True)
class Launch:
    """What is executed. `arguments` are the engine's own, without a secret; `command` may have more before them."""

    title: str
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def prepare(environment: Mapping[str, str]) -> Launch:
    """Read settings and secrets from the environment. Raises Refused where the engine cannot be started like that."""
    family = environment.get(FAMILY) or "vllm"
    makers: Mapping[str, Callable[[Settings, Mapping[str, str]], Launch]] = {
        "vllm": _vllm,
        "sglang": _sglang,
        "llamacpp": lambda settings, env: _llamacpp("llamacpp", settings, env),
        "llamacpp-buun": lambda settings, env: _llamacpp("llamacpp-buun", settings, env),
    }
    if family not in makers:
        raise Refused(f"{FAMILY}={family} is no engine", hint=f"there are {', '.join(makers)}")
    return makers[family](read_settings(environment), environment)


def _vllm(settings: Settings, environment: Mapping[str, str]) -> Launch:
    engine = installed_engine()
    if engine is None:
        raise Refused("no vLLM is installed beside this Python", hint="pip install 'dflash-deploy[vllm]'")
    arguments = engine_arguments(settings, engine="vllm", version=engine.version, cpu=engine.cpu)
    secrets = read_secrets(environment)
    # the lock would say so once the model is loaded, minutes later
    api_keys(secrets)
    return Launch(
        title=f"vLLM {engine.version}: vllm",
        command=tuple(engine.command(arguments)),
        arguments=tuple(arguments),
        environment=engine.environment(environment) | secrets,
    )


def _sglang(settings: Settings, environment: Mapping[str, str]) -> Launch:
    try:
        version = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        raise Refused("no SGLang is installed beside this Python", hint="build the image from images/sglang") from None
    arguments = engine_arguments(settings, engine="sglang", version=version)
    secrets = read_secrets(environment)
    if secrets.get("DFLASH_API_KEYS"):
        raise Refused("SGLang takes one key, and DFLASH_API_KEYS holds more", hint="empty DFLASH_API_KEYS in .env")
    # SGLang takes the key as an argument alone: a process of ours hands it over where `ps` does not look
    return Launch(
        title=f"SGLang {version}: sglang.launch_server",
        command=(sys.executable, "-m", "dflash_deploy.serve.engines.sglang_server", *arguments),
        arguments=tuple(arguments),
        environment={**environment, **secrets},
    )


def _llamacpp(family: EngineName, settings: Settings, environment: Mapping[str, str]) -> Launch:
    arguments = engine_arguments(settings, engine=family, version="")
    secrets = read_secrets(environment)
    # commas stand between several keys there too (b11434 common/arg.cpp)
    named = {"LLAMA_API_KEY": ",".join(api_keys(secrets))} if "VLLM_API_KEY" in secrets else {}
    without = {name: value for name, value in environment.items() if name not in secrets}
    return Launch(
        title=f"{family}: llama-server",
        command=(LLAMA_SERVER, *arguments),
        arguments=tuple(arguments),
        environment={**without, **named},
    )
