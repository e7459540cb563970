"""Settings become the argument list of an engine. Pure: the same settings and version give the same list."""

from __future__ import annotations

from dflash_deploy.serve.engines import llamacpp, sglang, vllm
from dflash_deploy.serve.flags import refuse_known
from dflash_deploy.serve.settings import EngineName, Settings


def engine_arguments(settings: Settings, *, engine: EngineName = "vllm", version: str, cpu: bool = False) -> list[str]:
    """The arguments of the engine's own command: what follows `vllm`, `sglang.launch_server` or `llama-server`.

    No secret is among them. Raises Refused where that version cannot do what the settings ask.
    """
    check_extra_args(settings, engine)
    match engine:
        case "vllm":
            return vllm.arguments(settings, version=version, cpu=cpu)
        case "sglang":
            return sglang.arguments(settings)
        case "llamacpp" | "llamacpp-buun":
            return llamacpp.arguments(settings, fork=engine == "llamacpp-buun")


def check_extra_args(settings: Settings, engine: EngineName) -> None:
    """Raises Refused where EXTRA_ARGS holds an argument of this engine that has a setting."""
    refuse_known(
        settings.extra_args,
        {
            "vllm": vllm.HAS_A_SETTING,
            "sglang": sglang.HAS_A_SETTING,
            "llamacpp": llamacpp.HAS_A_SETTING,
            "llamacpp-buun": llamacpp.HAS_A_SETTING,
        }[engine],
    )


def engine_program(engine: EngineName) -> list[str]:
    """What stands before the arguments when a person types the command."""
    match engine:
        case "vllm":
            return ["vllm"]
        case "sglang":
            return ["python3", "-m", "sglang.launch_server"]
        case "llamacpp" | "llamacpp-buun":
            return ["llama-server"]
