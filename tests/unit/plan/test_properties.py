"""Whatever the machine and whatever is asked for: a plan, the same one twice, or one of the errors people can read."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.deployment.dotenv import fill_template
from dflash_deploy.errors import DeployError, UnknownProfile
from dflash_deploy.host.ask import ContainerEngine
from dflash_deploy.host.gpu import Gpu
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import GOALS, Checkpoints, Choice
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.serve.engines.installed import InstalledEngine
from tests.support.machines import MACHINES

T = TypeVar("T")

CATALOG = load_catalog()
KNOWN = [gpu for facts in MACHINES.values() for gpu in facts.gpus]

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
BYTES = st.integers(0, 2**42)

gpus = st.sampled_from(KNOWN) | st.builds(
    Gpu,
    name=st.sampled_from(["NVIDIA GeForce RTX 4090", "NVIDIA JMJWOA-Generic-GPU", "Tesla K80", ""]) | TEXT,
    compute_capability=st.sampled_from(["12.1", "12.0", "9.0", "8.6", "3.7", "", "twelve"]),
    memory=st.none() | BYTES,
    driver=st.sampled_from(["580.65.06", "535.54", "", "unknown"]),
    index=st.integers(0, 15),
    mig=st.booleans(),
)
machines = st.builds(
    HostFacts,
    architecture=st.sampled_from(["x86_64", "aarch64", "riscv64", ""]),
    cpus=st.integers(0, 512),
    memory_total=st.none() | BYTES,
    memory_available=st.none() | BYTES,
    gpus=st.lists(gpus, max_size=9).map(tuple),
    container_engine=st.none() | st.just(ContainerEngine("28.2.2", "2.39.1", "unix:///var/run/docker.sock")),
    native_engines=st.dictionaries(
        st.sampled_from(["vllm", "llamacpp"]),
        st.builds(InstalledEngine, st.just("installed"), st.sampled_from(["0.33.0", "b11549", "", "x"]), st.booleans()),
    ),
    gpu_problem=st.sampled_from(["", "nvidia-smi did not answer"]),
)
values = (
    st.sampled_from(["", "off", "on", "0", "1", "7", "65536", "-1", "1e3", "0.95", "fp8", "FLASH_ATTN", "²"]) | TEXT
)
names = st.sampled_from([*all_setting_names(), "NCCL_DEBUG", "VLLM_NVFP4_GEMM_BACKEND"])
wishes = st.builds(
    Choice,
    profile=st.none() | st.sampled_from([*CATALOG.profiles, "h200"]),
    model=st.none() | st.sampled_from([*CATALOG.pairs, "z-lab/Qwen3.5-27B-DFlash", "gpt-5"]),
    engine=st.none() | st.sampled_from([*CATALOG.engines, "vllm", "sglang", "llamacpp", "tgi"]),
    runtime=st.sampled_from([None, "compose", "native"]),
    goal=st.none() | st.sampled_from(GOALS),
    max_model_len=st.none() | st.integers(1, 2**22),
    concurrency=st.none() | st.integers(1, 5000),
    drafter=st.booleans(),
    host=st.none() | st.just("0.0.0.0"),
    port=st.none() | st.integers(1, 65535),
    node_rank=st.none() | st.integers(0, 3),
    master_addr=st.none() | st.just("10.0.0.1"),
    edited=st.dictionaries(names, values, max_size=6),
)
leaves = st.none() | st.integers() | TEXT | st.lists(st.integers() | TEXT, max_size=3)
configs = st.none() | st.dictionaries(
    st.sampled_from(
        [
            *("hidden_size", "vocab_size", "num_hidden_layers", "architectures", "block_size", "general.architecture"),
            *("layer_types", "dflash_config", "text_config", "quantization_config"),
        ]
    ),
    leaves | st.dictionaries(st.sampled_from(["block_size", "target_layer_ids", "quant_method", "quant_algo"]), leaves),
)
checkpoints = st.builds(Checkpoints, configs, configs)


def answered(ask: Callable[[], T]) -> T | DeployError:
    """What was asked for, or an error that says what to do."""
    try:
        return ask()
    except DeployError as error:
        return error


@settings(max_examples=400)
@given(machines, wishes, checkpoints)
def test_planning_is_total_and_deterministic(facts: HostFacts, choice: Choice, found: Checkpoints) -> None:
    plan = answered(lambda: plan_deployment(facts, choice, CATALOG, found))
    if isinstance(plan, DeployError):
        assert plan.message
        assert plan.hint
        return
    assert plan == plan_deployment(facts, choice, CATALOG, found)
    assert all(setting.reason and setting.origin for setting in plan.decisions)
    command = answered(partial(engine_command, plan))
    assert command.hint if isinstance(command, DeployError) else command
    written = answered(partial(fill_template, plan.values))
    assert written.hint if isinstance(written, DeployError) else written


@settings(max_examples=200)
@given(machines)
def test_every_machine_is_recognised_or_named(facts: HostFacts) -> None:
    plan = answered(lambda: plan_deployment(facts, Choice(), CATALOG))
    if isinstance(plan, DeployError):
        assert isinstance(plan, UnknownProfile)
        assert not facts.gpus or any(" ".join(gpu.name.splitlines()) in plan.message for gpu in facts.gpus)
        return
    assert "hardware-differs" not in {finding.id for finding in plan.findings}


@settings(max_examples=100)
@given(st.sampled_from(sorted(CATALOG.profiles)), wishes)
def test_what_is_planned_is_planned_again_the_same(profile: str, choice: Choice) -> None:
    plan = answered(lambda: plan_deployment(MACHINES[profile], replace(choice, edited={}), CATALOG))
    if isinstance(plan, DeployError):
        return
    again = plan_deployment(MACHINES[profile], Choice(edited=plan.values), CATALOG)
    assert again.values == plan.values
    assert again.memory == plan.memory
