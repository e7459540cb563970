"""Which engine a plan chooses on a machine with or without Docker, vLLM and llama.cpp, and the reason that it gives."""

from dataclasses import replace

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.result import Choice, Plan, RuntimeName
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.serve.engines.installed import InstalledEngine
from tests.support.machines import CPU_ENGINE, DOCKER, GIB, SPARK, machine

LLAMACPP = InstalledEngine("xllamacpp", "b11549", cpu=True)
VLLM_GPU = InstalledEngine("vllm", "0.33.0", cpu=False)
NO_COMPOSE = replace(DOCKER, compose=None)

ON_COMPOSE = ("vllm-cpu-0.32", "tiny", "compose")
VLLM = ("vllm-cpu-0.32", "tiny", "native")
GGUF = ("llamacpp-cpu-b11549", "tiny-gguf", "native")


def box(docker: str, installed: dict[str, InstalledEngine]) -> HostFacts:
    engine = {"docker": DOCKER, "docker without compose": NO_COMPOSE, "no docker": None}[docker]
    return replace(machine(container_engine=engine), native_engines=installed)


def chosen(facts: HostFacts, choice: Choice | None = None) -> Plan:
    return plan_deployment(facts, choice or Choice(), load_catalog())


def identity(made: Plan) -> tuple[str, str, str]:
    return made.engine.name, made.pair.name, made.runtime


def reason(made: Plan, name: str) -> str:
    return next(f"{one.origin}: {one.reason}" for one in made.decisions if one.name == name)


NOTHING: dict[str, InstalledEngine] = {}
BOTH = {"vllm": CPU_ENGINE, "llamacpp": LLAMACPP}
INSTALLED = {
    "nothing": NOTHING,
    "vllm": {"vllm": CPU_ENGINE},
    "llama.cpp": {"llamacpp": LLAMACPP},
    "vllm and llama.cpp": BOTH,
    "a vllm for gpus": {"vllm": VLLM_GPU},
    "a vllm for gpus, and llama.cpp": {"vllm": VLLM_GPU, "llamacpp": LLAMACPP},
}
WITHOUT_DOCKER = {
    # 226 MB to install, against 4.5 GB
    "nothing": GGUF,
    "vllm": VLLM,
    "llama.cpp": GGUF,
    "vllm and llama.cpp": VLLM,
    "a vllm for gpus": GGUF,
    "a vllm for gpus, and llama.cpp": GGUF,
}


@pytest.mark.parametrize("installed", INSTALLED)
@pytest.mark.parametrize("docker", ["docker", "docker without compose", "no docker"])
def test_a_plan_chooses_what_can_run_here(docker: str, installed: str) -> None:
    made = chosen(box(docker, INSTALLED[installed]))
    assert identity(made) == (ON_COMPOSE if docker == "docker" else WITHOUT_DOCKER[installed])
    assert not made.errors
    # what was written is planned again as it is
    again = chosen(box(docker, INSTALLED[installed]), Choice(edited=made.values))
    assert again.values == made.values
    assert [one for one in again.decisions if one.origin == ".env"] == []


def test_the_reason_says_what_is_missing() -> None:
    made = chosen(box("no docker", INSTALLED["llama.cpp"]))
    said = "machine: llama.cpp b11549 (CPU) is installed here; vLLM 0.32.0 (CPU) is not, and Docker with Compose"
    assert reason(made, "DFLASH_ENGINE").startswith(said)
    assert reason(made, "DFLASH_RUNTIME") == "machine: the engine is installed, and Docker with Compose is missing"
    nothing = reason(chosen(box("no docker", NOTHING)), "DFLASH_RUNTIME")
    assert nothing == "machine: the engine is the smallest to install, and Docker with Compose is missing"
    with_docker = chosen(box("docker", INSTALLED["llama.cpp"]))
    assert "installed" not in reason(with_docker, "DFLASH_ENGINE") + reason(with_docker, "DFLASH_RUNTIME")


@pytest.mark.parametrize(
    ("choice", "identified"),
    [
        (Choice(runtime="native"), GGUF),
        (Choice(runtime="compose"), ON_COMPOSE),
        (Choice(edited={"DFLASH_RUNTIME": "native"}), GGUF),
        (Choice(engine="vllm"), ON_COMPOSE),
        (Choice(model="tiny"), ON_COMPOSE),
        (Choice(model="tiny-gguf"), GGUF),
    ],
)
def test_what_is_asked_for_counts_more_than_what_is_installed(
    choice: Choice, identified: tuple[str, str, RuntimeName]
) -> None:
    assert identity(chosen(box("no docker", INSTALLED["llama.cpp"]), choice)) == identified


def test_natively_an_installed_engine_comes_before_one_in_a_container() -> None:
    native = Choice(runtime="native")
    made = chosen(box("docker", INSTALLED["llama.cpp"]), native)
    assert identity(made) == GGUF
    # Docker is not missing here
    assert reason(made, "DFLASH_ENGINE").endswith("vLLM 0.32.0 (CPU) is not")


def test_a_gpu_without_docker_uses_the_vllm_that_is_installed_if_it_serves_the_model() -> None:
    bare = replace(SPARK, container_engine=None)
    without = chosen(bare)
    assert (without.engine.name, without.runtime) == ("vllm-0.33", "compose")
    made = chosen(replace(bare, native_engines={"vllm": VLLM_GPU}))
    assert (made.engine.name, made.runtime, made.pair.family) == ("vllm-0.33", "native", without.pair.family)
    # another model is no way out: its weights do not fit here
    small = replace(bare, memory_total=44 * GIB, native_engines={"vllm": VLLM_GPU})
    assert chosen(small).pair == chosen(replace(small, native_engines={})).pair
    # a build for processors
    assert identity(chosen(replace(bare, native_engines={"llamacpp": LLAMACPP}))) == identity(without)
