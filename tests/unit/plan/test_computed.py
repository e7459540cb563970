"""Machines that no profile describes: 29 that `init` refused or took for another card, as nvidia-smi prints them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.errors import UnknownProfile
from dflash_deploy.host.gpu import FIELDS, gpus_of
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment, why_profile_does_not_fit
from tests.support.machines import DOCKER, GIB, machine
from tests.support.rows import each_of

CATALOG = load_catalog()


@dataclass(frozen=True)
class Seen:
    """A machine: name, capability and MiB of each GPU as nvidia-smi prints them, and the profile it gets.

    `like` is the profile whose settings it has; empty if it has a profile of its own or is refused.
    """

    gpus: tuple[str, ...]
    profile: str = ""
    like: str = ""
    arm: bool = False

    @property
    def facts(self) -> HostFacts:
        """The machine, from what its nvidia-smi prints."""
        rows = []
        for index, line in enumerate(self.gpus):
            name, capability, memory = line.split(", ")
            cells = (str(index), name, capability, memory, memory, "580.95.05", "[N/A]")
            rows.append(dict(zip(FIELDS, cells, strict=True)))
        total, processor = (120 * GIB, "aarch64") if self.arm else (64 * GIB, "x86_64")
        return machine(*gpus_of(rows), container_engine=DOCKER, memory=total, architecture=processor)


RTX_3090, RTX_4090 = "NVIDIA GeForce RTX 3090, 8.6, 24576", "NVIDIA GeForce RTX 4090, 8.9, 24564"
RTX_5060_TI = "NVIDIA GeForce RTX 5060 Ti, 12.0, 16311"
PRO_6000 = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 12.0, 97887"
MACHINES = [
    Seen((RTX_5060_TI,), "rtx-5060-ti", "rtx-5090"),
    Seen((RTX_5060_TI,) * 2, "rtx-5060-ti-x2", "rtx-5090-x2"),
    Seen(("NVIDIA GeForce RTX 5080, 12.0, 16303",), "rtx-5080", "rtx-5090"),
    Seen(("NVIDIA RTX 6000 Ada Generation, 8.9, 49140",), "rtx-6000-ada", "rtx-4090"),
    Seen(("NVIDIA L40S, 8.9, 46068",), "l40s", "rtx-4090"),
    Seen(("NVIDIA RTX A6000, 8.6, 49140",), "rtx-a6000", "rtx-3090"),
    Seen(("NVIDIA A100-SXM4-40GB, 8.0, 40960",), "a100-40gb", "a100"),
    Seen(("NVIDIA Thor, 11.0, [N/A]",), "thor", "dgx-spark", arm=True),
    Seen(("NVIDIA GB300, 10.3, 256703",), "gb300", "b200", arm=True),
    Seen(("NVIDIA B300 SXM6 AC, 10.3, 275040",), "b300", "b200"),
    Seen(("NVIDIA RTX PRO 5000 Blackwell, 12.0, 48935",), "rtx-pro-5000", "rtx-5090"),
    Seen(("NVIDIA H20, 9.0, 97871",), "h20", "h100"),
    Seen(("NVIDIA H100 NVL, 9.0, 95830",), "h100-nvl", "h100"),
    Seen(("NVIDIA GH200 480GB, 9.0, 97871",), "gh200", "h100", arm=True),
    Seen(("Tesla V100-SXM2-32GB, 7.0, 32768",)),
    Seen(("NVIDIA GeForce RTX 2080 Ti, 7.5, 22528",)),
    Seen(("NVIDIA L4, 8.9, 23034",), "l4", "rtx-4090"),
    Seen(("NVIDIA A10, 8.6, 23028",), "a10", "rtx-3090"),
    Seen(("NVIDIA RTX PRO 4500 Blackwell, 12.0, 32623",), "rtx-pro-4500", "rtx-5090"),
    Seen(("NVIDIA H20-3e, 9.0, 143771",), "h20-3e", "h200"),
    Seen(("NVIDIA H100 PCIe, 9.0, 81559",), "h100-pcie", "h100"),
    Seen(("NVIDIA GB200, 10.0, 189471",), "gb200", "b200", arm=True),
    Seen((PRO_6000,) * 2, "rtx-pro-6000-x2", "rtx-pro-6000"),
    Seen((RTX_4090,) * 2, "rtx-4090-x2", "rtx-4090"),
    Seen((RTX_3090, RTX_4090), "rtx-4090"),
    Seen((RTX_3090, RTX_5060_TI), "rtx-3090"),
    Seen((RTX_3090,) * 3, "rtx-3090-x2"),
    Seen(
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition, 12.0, 97887",), "rtx-pro-6000-max-q", "rtx-pro-6000"
    ),
    Seen(("NVIDIA A10G, 8.6, 23028",) * 4, "a10g-x4", "rtx-3090-x4"),
]


def planned(seen: Seen, choice: Choice | None = None) -> Plan:
    return plan_deployment(seen.facts, choice or Choice(), CATALOG)


@each_of([seen for seen in MACHINES if seen.like])
def test_a_gpu_without_a_profile_is_planned_from_its_own_figures(seen: Seen) -> None:
    made = planned(seen)
    profile, like = made.profile, CATALOG.profiles[seen.like]
    assert (profile.name, made.errors) == (seen.profile, ())
    assert profile.evidence.state == "computed"
    assert profile.evidence.by.startswith(f"settings of profile {like.name}, with this GPU's own figures")
    (model,) = (one for one in CATALOG.gpu_models if profile.name.removesuffix(f"-x{len(seen.gpus)}") == one.name)
    hardware = profile.hardware
    assert (hardware.bandwidth, hardware.tflops, hardware.source) == (model.bandwidth, model.tflops, model.source)
    assert "profile-computed" in {finding.id for finding in made.findings}
    assert made.memory is not None
    assert made.memory.fits
    assert made.settings.tensor_parallel_size == (len(seen.gpus) if len(seen.gpus) > 1 else None)


@each_of([seen for seen in MACHINES if seen.like])
def test_no_machine_is_given_another_cards_speed(seen: Seen) -> None:
    made = planned(seen)
    profile = made.profile
    assert (profile.speed, profile.first_start) == ("", None)
    assert not [one for one in CATALOG.speeds if one.profile == profile.name]
    # all weights are read for each token: no GPU is faster than its bandwidth without drafts
    experts = made.pair.shape.experts is not None
    fastest = profile.gpus * profile.hardware.bandwidth * 1e9 / made.pair.target.bytes
    assert experts or made.speed[0].plain_tokens_per_s[0] < fastest


@each_of([seen for seen in MACHINES if seen.profile and not seen.like])
def test_of_unequal_gpus_those_that_are_left_are_named_one_by_one(seen: Seen) -> None:
    made = planned(seen)
    names = [line.partition(",")[0] for line in seen.gpus]
    used = made.values["CUDA_VISIBLE_DEVICES"].split(",")
    assert (made.profile.name, made.profile.evidence.state) == (seen.profile, "reported")
    (reason,) = (one.reason for one in made.decisions if one.name == "CUDA_VISIBLE_DEVICES")
    assert reason.endswith(", ".join(f"GPU {index} is {name}" for index, name in enumerate(names)))
    (left,) = (one.message for one in made.findings if one.id == "gpus-unused")
    listed = [f"{name} ({index})" for index, name in enumerate(names)]
    unused = [one for index, one in enumerate(listed) if str(index) not in used]
    named = ", ".join(one for one in listed if one not in unused), ", ".join(unused)
    assert left == f"the plan uses {len(used)} of {len(names)} GPUs: {named[0]}, not {named[1]}"


@each_of([seen for seen in MACHINES if not seen.profile])
def test_a_gpu_that_loads_no_draft_model_is_refused_with_the_reason(seen: Seen) -> None:
    with pytest.raises(UnknownProfile) as refused:
        planned(seen)
    assert refused.value.message.endswith(
        "; vLLM and SGLang load draft models, which are BF16, from compute capability 8.0 on"
    )
    assert "(nearest: rtx-3090, one NVIDIA GeForce RTX 3090 (24 GB))" in refused.value.hint
    assert "\n" not in refused.value.message + refused.value.hint


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        ("NVIDIA GeForce RTX 5090 Laptop GPU, 12.0, 24463", "the catalog has no bandwidth of it"),
        ("NVIDIA GeForce RTX 5060 Ti, 12.0, 8151", "the catalog has no bandwidth of it"),
        ("NVIDIA Next, 14.0, 98304", "no engine is known to run DFlash on compute capability 14.0"),
    ],
)
def test_a_gpu_that_is_not_in_the_catalog_is_refused_with_the_nearest_profile(gpu: str, says: str) -> None:
    with pytest.raises(UnknownProfile, match=says) as refused:
        planned(Seen((gpu,)))
    assert "(nearest: rtx-" in refused.value.hint


def test_a_computed_profile_is_chosen_by_name_on_any_machine() -> None:
    made = plan_deployment(machine(), Choice(profile="l40s-x2"), CATALOG)
    assert (made.profile.title, made.settings.tensor_parallel_size) == ("2 NVIDIA L40S (48 GB)", 2)
    with pytest.raises(UnknownProfile, match="`l40s-x3` is not a known profile"):
        CATALOG.profile("l40s-x3")


def test_a_profile_says_which_gpu_it_is_for() -> None:
    why = why_profile_does_not_fit(CATALOG.profiles["h100"], Seen(("NVIDIA H100 PCIe, 9.0, 81559",)).facts)
    assert why == "needs one NVIDIA H100 (80 GB); found NVIDIA H100 PCIe (80 GiB)"


def test_visible_devices_of_nonsense_are_an_error_of_one_line() -> None:
    made = planned(Seen(("NVIDIA L4, 8.9, 23034",)), Choice(edited={"CUDA_VISIBLE_DEVICES": "banana"}))
    (error,) = made.errors
    assert error.message == "CUDA_VISIBLE_DEVICES=banana: this machine has no GPU `banana`"


def test_each_gpu_has_a_source_and_a_profile_to_start_from() -> None:
    for model in CATALOG.gpu_models:
        assert CATALOG.profile(model.name).hardware.source == model.source
    names = [name for model in CATALOG.gpu_models for name in model.names]
    assert len(names) == len(set(names))


def test_a_profile_is_found_in_any_case() -> None:
    catalog = load_catalog()
    assert catalog.profile("RTX-3090") == catalog.profile("rtx-3090")
    assert catalog.profile("L40S").name == "l40s"
