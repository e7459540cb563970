"""The GPU, its driver and its memory, and the processor."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dflash_deploy.doctor import machine
from dflash_deploy.doctor.check import Check, DoctorContext
from dflash_deploy.host.gpu import CONDITION, Gpu, GpuProcess
from dflash_deploy.host.machine import with_named_slices
from dflash_deploy.plan.result import Plan
from dflash_deploy.runtime.protocol import EngineState
from tests.support.examined import H100, NVIDIA_DOCKER, a_machine, a_plan, a_subject, by_name, only
from tests.support.machines import GIB, RTX_3090
from tests.support.machines import machine as bare
from tests.support.recorded import RTX_3090 as GOOD
from tests.support.scripted import ScriptedRuntime

GB10 = Gpu("NVIDIA GB10", "12.1", None, "580.95.05")


def gpu(subject: DoctorContext, _: Plan | None) -> Iterator[Check]:
    return machine.gpu(subject)


@pytest.fixture(autouse=True)
def _nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_processes", tuple)


def test_gpus_are_named_and_counted() -> None:
    check = only(gpu, a_subject(facts=a_machine(*[RTX_3090] * 4)))
    assert (check.status, check.saw) == ("ok", "4 x NVIDIA GeForce RTX 3090 (compute capability 8.6, 24.0 GiB)")


def test_no_gpu_where_one_is_planned() -> None:
    check = only(gpu, a_subject(facts=bare()))
    assert check.status == "no"
    assert "not installed" in check.saw


def test_no_gpu_is_fine_where_none_is_planned() -> None:
    assert only(gpu, a_subject(a_plan(cpu=True), bare())).status == "ok"


def test_a_driver_that_was_updated_under_way() -> None:
    facts = replace(bare(), gpu_problem="nvidia-smi fails: Failed to initialize NVML: Driver/library version mismatch")
    check = only(gpu, a_subject(facts=facts))
    assert check.status == "no"
    assert "version mismatch" in check.saw
    assert check.fix.startswith("reboot")


def test_slices_and_lost_cards_are_warned_of() -> None:
    bare_mig = only(gpu, a_subject(facts=a_machine(replace(H100, mig=True))))
    assert (bare_mig.status, "none exists yet" in bare_mig.fix) == ("warning", True)
    card = replace(H100, mig=True, slices=(replace(H100, uuid="MIG-1", name="H100 MIG 1g.10gb", memory=10 * GIB),))
    assert "MIG-1 (H100 MIG 1g.10gb)" in only(gpu, a_subject(facts=a_machine(card))).fix
    named = with_named_slices(a_machine(card), "MIG-1")
    assert only(gpu, a_subject(facts=named)).status == "ok"
    assert "10.0 GiB" in only(gpu, a_subject(facts=named)).saw
    # a share of the slice, not of the card
    assert "9.2 GiB needed" in only(machine.memory, a_subject(facts=named)).saw
    lost = replace(a_machine(), gpu_problem="nvidia-smi fails: Lost GPU 1")
    assert only(gpu, a_subject(facts=lost)).status == "no"
    assert only(gpu, a_subject(a_plan(CUDA_VISIBLE_DEVICES="0"), lost)).status == "warning"
    warned = replace(a_machine(), gpu_problem="nvidia-smi fails: WARNING: infoROM is corrupted")
    assert only(gpu, a_subject(facts=warned)).status == "warning"


@pytest.mark.parametrize(
    ("seen", "status"), [("580.65.06", "ok"), ("615.32", "ok"), ("570.133.07", "no"), ("", "warning")]
)
def test_driver(seen: str, status: str) -> None:
    check = only(machine.driver, a_subject(facts=a_machine(replace(H100, driver=seen))))
    assert check.status == status
    assert "needs 580" in check.saw


def test_the_engine_may_need_a_newer_driver_than_the_machine() -> None:
    check = only(machine.driver, a_subject(a_plan(driver="550")))
    assert "needs 575" in check.saw


def test_architecture() -> None:
    assert only(machine.architecture, a_subject()).status == "ok"
    other = a_machine(engine=replace(NVIDIA_DOCKER, architecture="riscv64"))
    check = only(machine.architecture, a_subject(facts=other))
    assert check.status == "no"
    assert "aarch64, x86_64" in check.saw


def test_the_container_engine_s_architecture_counts_by_either_name() -> None:
    arm = a_machine(engine=replace(NVIDIA_DOCKER, architecture="arm64"))
    assert only(machine.architecture, a_subject(facts=arm)).saw.endswith("aarch64")


def test_enough_memory() -> None:
    check = only(machine.memory, a_subject())
    assert (check.status, check.saw) == ("ok", "79.1 GiB free, 73.3 GiB needed")


def test_memory_that_others_hold_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    holders = (GpuProcess(6975, "VLLM::EngineCore", 60 * GIB, "comfyui"), GpuProcess(524, "", None))
    monkeypatch.setattr(machine, "gpu_processes", lambda: holders)
    check = only(machine.memory, a_subject(facts=a_machine(replace(H100, free=19 * GIB))))
    assert check.status == "no"
    assert check.saw == (
        "19.0 GiB free, 73.3 GiB needed; held by container comfyui (VLLM::EngineCore) with 60.0 GiB; process 524"
    )


def test_each_of_several_gpus_is_looked_at() -> None:
    gpus = [replace(RTX_3090, index=0, free=24 * GIB), replace(RTX_3090, index=1, free=GIB)]
    checks = by_name(machine.memory, a_subject(a_plan(gpus=2), a_machine(*gpus)))
    assert [check.status for check in checks.values()] == ["ok", "no"]
    assert list(checks) == ["memory of GPU 0", "memory of GPU 1"]


def test_a_card_that_the_plan_does_not_use_may_be_busy() -> None:
    gpus = [replace(RTX_3090, index=0, free=24 * GIB), replace(RTX_3090, index=1, free=GIB)]
    checks = by_name(machine.memory, a_subject(a_plan(gpus=1), a_machine(*gpus)))
    assert [check.status for check in checks.values()] == ["ok"]


def test_llama_cpp_takes_what_it_needs() -> None:
    check = only(machine.memory, a_subject(a_plan(family="llamacpp"), a_machine(replace(H100, free=24 * GIB))))
    assert (check.status, check.saw) == ("ok", "24.0 GiB free, 23.0 GiB needed")


def test_unified_memory_is_the_systems() -> None:
    plan = a_plan(unified=True, GPU_MEMORY_UTILIZATION="0.85")
    facts = a_machine(GB10)
    assert only(machine.memory, a_subject(plan, facts)).saw == "120.0 GiB free, 102.0 GiB needed"
    assert only(machine.memory, a_subject(plan, replace(facts, memory_available=90 * GIB))).status == "no"


def test_a_machine_without_a_gpu_needs_weights_and_cache() -> None:
    plan = a_plan(cpu=True, VLLM_CPU_KVCACHE_SPACE="1")
    facts = replace(bare(), memory_available=30 * GIB)
    assert only(machine.memory, a_subject(plan, facts)).saw == "30.0 GiB free, 24.0 GiB needed"
    assert only(machine.memory, a_subject(plan, replace(facts, memory_available=5 * GIB))).status == "no"


def test_free_memory_that_nobody_says_is_no_refusal() -> None:
    assert only(machine.memory, a_subject(facts=a_machine(replace(H100, free=None)))).status == "warning"


def test_the_deployments_own_engine_holds_what_it_needs() -> None:
    running = ScriptedRuntime([EngineState("running", address="127.0.0.1:8000")])
    full = a_machine(replace(H100, free=0))
    assert only(machine.memory, a_subject(facts=full, runtime=running)).status == "ok"


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("nvidia-smi fails: No devices were found", "the driver runs and finds no GPU: `sudo dmesg | grep -i nvrm`"),
        (
            "nvidia-smi fails: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "`dkms status`",
        ),
        (
            "nvidia-smi fails: Unable to determine the device handle for GPU1: Unknown Error",
            "reboot, or until then set",
        ),
        ("nvidia-smi fails: Failed to initialize NVML: Insufficient Permissions", "run `nvidia-smi`"),
        (
            "1 NVIDIA GPU on the PCI bus, but nvidia-smi is not installed: the driver is missing",
            "install the NVIDIA driver",
        ),
    ],
)
def test_the_advice_is_for_what_nvidia_smi_said(problem: str, advice: str) -> None:
    check = only(gpu, a_subject(facts=replace(bare(), gpu_problem=problem)))
    assert (check.status, problem in check.saw) == ("no", True)
    assert advice in check.fix


def condition(subject: DoctorContext, _: Plan | None) -> Iterator[Check]:
    return machine.condition(subject)


def card(one: Gpu = RTX_3090, **cells: str) -> Gpu:
    """A GPU in good condition but for these cells, whose names have `_` for `.`."""
    named = {name.replace("_", "."): cell for name, cell in cells.items()}
    usual = {name: cell for name, cell in GOOD.items() if name in CONDITION}
    return replace(
        one, condition=usual | {name: named.get(name.replace("_", "."), cell) for name, cell in usual.items()}
    )


@pytest.mark.parametrize(
    ("one", "status", "said"),
    [
        (card(pcie_link_width_current="1"), "warning", "PCIe link is x1 of x16, generation 1 of 4"),
        (card(pcie_link_width_current="4"), "warning", "x4 of x16"),
        (card(utilization_gpu="97", clocks_current_sm="1400"), "warning", "generation 1 of 4"),
        (card(power_limit="100.00"), "warning", "power limit is 100 W of 350 W (29 %)"),
        (card(temperature_gpu="93"), "warning", "too hot (93 °C)"),
        (card(clocks_throttle_reasons_active="0x0000000000000040"), "warning", "too hot"),
        (card(clocks_throttle_reasons_active="0x0000000000000088"), "warning", "power brake"),
        (card(compute_mode="Prohibited"), "no", "compute mode is Prohibited"),
        (card(compute_mode="Exclusive_Process"), "warning", "Exclusive_Process"),
        (card(gpu_recovery_action="Reset"), "no", "asks for a recovery: Reset"),
        (card(remapped_rows_pending="Yes"), "warning", "wait for a reset"),
        (
            card(GB10, utilization_gpu="96", clocks_current_sm="507", clocks_max_sm="3003", power_draw="14.02"),
            "warning",
            "runs at 507 of 3003 MHz under load, with 14.02 W",
        ),
    ],
)
def test_a_condition_that_costs_speed_is_named(one: Gpu, status: str, said: str) -> None:
    check = only(condition, a_subject(facts=a_machine(one)))
    assert check.status == status
    assert said in check.saw
    assert check.fix


# Readings of CONDITION, as far as they were printed, on machines of others (utkuozdemir/nvidia_gpu_exporter,
# internal/captures): an RTX 2080 Super, a 4080 Super, an H100, an H200 and an L40S under load.
CAPTURED = (
    "16|16|1|3|250.00|250.00|39.32|40|0|765|2145|0x0000000000000004|Default|None",
    "16|16|1|4|320.00|320.00|26.20|43|0|210|3165|0x0000000000000001|Default|None",
    "16|16|5|5|700.00|700.00|69.85|41|0|345|1980|0x0000000000000001|Default|None|0",
    "16|16|5|5|700.00|700.00|77.71|28|0|345|1980|0x0000000000000001|Default|None|0",
    "16|16|4|4|350.00|350.00|144.97|63|100|2520|2520|0x0000000000000000|Default|None|0",
)


@pytest.mark.parametrize(
    "one",
    [
        card(),
        # two slots of a desktop share 16 lanes, and a limit of a few percent costs nothing
        card(pcie_link_width_current="8", power_limit="330.00"),
        # a power-limited card under load
        card(
            utilization_gpu="99",
            clocks_current_sm="1400",
            pcie_link_gen_current="4",
            clocks_throttle_reasons_active="0x0000000000000004",
        ),
        card(GB10, pcie_link_width_current="1", utilization_gpu="96", clocks_current_sm="2400"),
        *(replace(RTX_3090, condition=dict(zip(CONDITION, cells.split("|"), strict=False))) for cells in CAPTURED),
    ],
)
def test_a_good_condition_is_one_line(one: Gpu) -> None:
    assert only(condition, a_subject(facts=a_machine(one))).status == "ok"


def test_each_gpu_of_the_plan_is_named_and_others_are_not_judged() -> None:
    slow = card(replace(RTX_3090, index=1), power_limit="100.00", temperature_gpu="93", pcie_link_width_current="1")
    checks = list(condition(a_subject(a_plan(gpus=2), a_machine(card(), slow)), None))
    assert [(check.name, check.status) for check in checks] == [
        ("condition of GPU 0", "ok"),
        *[("condition of GPU 1", "warning")] * 3,
    ]
    assert only(condition, a_subject(a_plan(gpus=1), a_machine(card(), slow))).status == "ok"
    # a driver that says nothing about it
    assert not list(condition(a_subject(facts=a_machine(RTX_3090)), None))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"MemoryMax": 20.0 * GIB}, "MemoryMax of this process is 20.0 GiB, and 24.0 GiB is needed"),
        ({"CPUQuota": 1.5}, "CPUQuota of this process is 1.5, and 2 is needed"),
        ({"LimitAS": 2.0**34}, "LimitAS of this process is 1.718e+10, and no limit is needed"),
        ({"LimitNOFILE": 1024.0}, "LimitNOFILE of this process is 1024, and 4096 is needed"),
        ({"LimitNOFILE": 1048576.0, "MemoryMax": 64.0 * GIB, "CPUQuota": 8.0}, ""),
        ({}, ""),
    ],
)
def test_limits_that_a_native_engine_inherits(
    limits: dict[str, float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "read_limits", lambda: limits)
    plan = a_plan(cpu=True, runtime="native", VLLM_CPU_KVCACHE_SPACE="1")
    checks = list(machine.limits(a_subject(plan, bare()), plan))
    assert [check.saw for check in checks] == [said] * bool(said)
    # a container is not a child of this process
    contained = a_plan(cpu=True)
    assert not list(machine.limits(a_subject(contained, bare()), contained))
