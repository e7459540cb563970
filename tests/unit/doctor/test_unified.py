"""What doctor says of a machine whose GPU uses the system's memory."""

from dataclasses import replace

import pytest

from dflash_deploy.doctor import machine
from dflash_deploy.doctor.check import Check, DoctorContext
from dflash_deploy.doctor.table import OF_THE_PLAN
from dflash_deploy.host.gpu import Tenant
from dflash_deploy.plan.result import Plan
from dflash_deploy.runtime.protocol import EngineState
from tests.support.examined import a_machine, a_plan, a_subject
from tests.support.machines import GB10, GIB
from tests.support.scripted import ScriptedRuntime

PLAN = a_plan(unified=True, GPU_MEMORY_UTILIZATION="0.8")
MACHINE = a_machine(GB10)
BUSY = replace(MACHINE, memory_available=70 * GIB)
HOLDERS = (
    Tenant("container comfyui", 30 * GIB),
    Tenant("ollama (process 812)", 9 * GIB),
    Tenant("bash (process 9)", 2**20),
)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with earlyoom and no swap, whose memory others hold."""
    read(monkeypatch, {"SwapTotal": 0, "SwapFree": 0})
    monkeypatch.setattr(machine, "running_programs", lambda: frozenset({"earlyoom"}))
    monkeypatch.setattr(machine, "tenants", lambda: HOLDERS)


def read(monkeypatch: pytest.MonkeyPatch, memory: dict[str, int]) -> None:
    monkeypatch.setattr(machine, "read_memory", lambda: memory)


def checks(plan: Plan = PLAN, subject: DoctorContext | None = None) -> dict[str, Check]:
    return {one.name: one for one in machine.unified_memory(subject or a_subject(plan, MACHINE), plan)}


def test_a_machine_with_room_has_two_lines() -> None:
    found = checks()
    assert [(one.name, one.status) for one in found.values()] == [("oom daemon", "ok"), ("swap", "ok")]
    assert found["swap"].saw == "none"


@pytest.mark.parametrize("plan", [a_plan(), a_plan(unified=True, cpu=True)])
def test_other_machines_have_none(plan: Plan) -> None:
    assert not checks(plan)


@pytest.mark.parametrize(
    ("running", "status"),
    [({"earlyoom"}, "ok"), ({"systemd-oomd"}, "ok"), ({"earlyoom", "systemd-oomd"}, "ok"), ({"bash"}, "warning")],
)
def test_what_ends_a_process_in_time_is_named(monkeypatch: pytest.MonkeyPatch, running: set[str], status: str) -> None:
    monkeypatch.setattr(machine, "running_programs", lambda: frozenset(running))
    found = checks()["oom daemon"]
    assert found.status == status
    assert all(name in found.saw for name in running - {"bash"})
    assert ("apt install earlyoom" in found.fix) is (status == "warning")


@pytest.mark.parametrize(
    ("memory", "status", "saw"),
    [
        ({"SwapTotal": 16 * GIB, "SwapFree": 16 * GIB}, "ok", "0.0 GiB of 16.0 GiB used"),
        ({"SwapTotal": 16 * GIB, "SwapFree": 13 * GIB}, "warning", "3.0 GiB of 16.0 GiB used: memory was short"),
        ({}, "skipped", "does not report"),
    ],
)
def test_swap_that_is_used_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, memory: dict[str, int], status: str, saw: str
) -> None:
    read(monkeypatch, memory)
    found = checks()["swap"]
    assert found.status == status
    assert saw in found.saw
    assert ("swapoff" in found.fix) is (status == "warning")


def test_the_largest_tenants_are_named_if_the_plan_needs_more_than_is_available() -> None:
    found = checks(subject=a_subject(PLAN, BUSY))["tenants"]
    assert found.status == "warning"
    assert found.saw == (
        "70.0 GiB available, 96.0 GiB planned; the largest programs: container comfyui with 30.0 GiB; "
        "ollama (process 812) with 9.0 GiB"
    )
    assert "GPU_MEMORY_UTILIZATION in .env to 0.58 or less" in found.fix


def test_an_engine_without_a_share_gets_a_shorter_context() -> None:
    llamacpp = a_plan(unified=True, family="llamacpp")
    found = checks(llamacpp, a_subject(llamacpp, replace(MACHINE, memory_available=10 * GIB)))["tenants"]
    assert "MAX_MODEL_LEN" in found.fix


def test_the_deployment_s_own_engine_is_no_tenant() -> None:
    runtime = ScriptedRuntime([EngineState("running")])
    assert "tenants" not in checks(subject=a_subject(PLAN, BUSY, runtime=runtime))


def test_doctor_asks_for_it_after_the_memory() -> None:
    names = [name for name, _ in OF_THE_PLAN]
    assert names[names.index("memory") + 1] == "unified memory"
