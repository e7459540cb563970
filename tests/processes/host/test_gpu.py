"""What nvidia-smi prints on machines that people have, and on those where it prints no GPU."""

import contextlib
import shutil
from pathlib import Path

import pytest

from dflash_deploy.host import gpu as nvidia_smi
from dflash_deploy.host.gpu import Gpu, GpuReading, read_gpus
from dflash_deploy.host.machine import read_facts
from tests.support.commands import eventually
from tests.support.recorded import plays, reports

MIB = 2**20
NO_BUS = Path("/nowhere")


def reading(tmp_path: Path, name: str, *, code: int = 0, body: str = "") -> GpuReading:
    """What is read from an nvidia-smi that prints this recording."""
    return read_gpus(plays(tmp_path, "nvidia-smi", name, code=code, body=body), pci_devices=NO_BUS)


def test_gb10_keeps_its_row_although_its_memory_is_not_known(tmp_path: Path) -> None:
    assert reading(tmp_path, "gb10.txt") == GpuReading((Gpu("NVIDIA GB10", "12.1", None, "580.126.09"),))


def test_the_same_chip_under_its_placeholder_name_is_told_by_what_stands_beside_it(tmp_path: Path) -> None:
    (spark,) = reading(tmp_path, "gb10-placeholder-name.txt").gpus
    (windows,) = reading(tmp_path, "n1x-wsl.txt").gpus
    assert spark.compute_capability == windows.compute_capability == "12.1"
    assert spark.memory is None
    assert windows.memory == 63936 * MIB


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("h100.txt", Gpu("NVIDIA H100 80GB HBM3", "9.0", 81559 * MIB, "590.48.01", free=81079 * MIB)),
        ("h200.txt", Gpu("NVIDIA H200", "9.0", 143771 * MIB, "580.173.02", free=143147 * MIB)),
        ("b200.txt", Gpu("NVIDIA B200", "10.0", 183359 * MIB, "595.71.05", free=182642 * MIB)),
        ("rtx5090.txt", Gpu("NVIDIA GeForce RTX 5090", "12.0", 32607 * MIB, "610.57.04", free=3267 * MIB)),
    ],
)
def test_a_gpu_with_its_own_memory(tmp_path: Path, name: str, gpu: Gpu) -> None:
    assert reading(tmp_path, name) == GpuReading((gpu,))


def test_a_gpu_cut_into_slices_keeps_the_memory_of_the_whole_card(tmp_path: Path) -> None:
    (gpu,) = reading(tmp_path, "h200-mig.txt").gpus
    assert gpu.mig
    assert gpu.memory == 143771 * MIB


def test_a_slice_has_the_memory_of_its_name_and_the_rest_of_its_gpu(tmp_path: Path) -> None:
    rows = [f"{index}, NVIDIA A100-SXM4-40GB, 8.0, 40960, 40443, 580.65.06, Enabled" for index in (0, 1)]
    rows += ["2, NVIDIA A100-SXM4-40GB, 8.0, 40960, 40443, 580.65.06, Disabled"]
    body = f"case $1 in --query*) printf '%s\\n' {' '.join(map(repr, rows))}; exit;; esac"
    gpus = reading(tmp_path, "mig-list.txt", body=body).gpus
    assert [[one.uuid for one in gpu.slices] for gpu in gpus] == [
        ["MIG-6e95ef19-5145-571b-b040-7e731f1c1af3"], ["MIG-b4bcd4f3-6f69-516d-9404-b5ada80d760b"], []
    ]  # fmt: skip
    (first,) = gpus[0].slices
    assert (first.name, first.memory, first.mig) == ("NVIDIA A100-SXM4-40GB MIG 1g.10gb", 10 * 1024 * MIB, False)
    assert first.compute_capability == "8.0"


def test_four_of_a_kind(tmp_path: Path) -> None:
    gpus = reading(tmp_path, "rtx3090-x4.txt").gpus
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
    assert {gpu.compute_capability for gpu in gpus} == {"8.6"}


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("rtx3090-rtx4090.txt", ["8.9", "8.6"]),
        ("rtx3090-gt1030.txt", ["6.1", "8.6"]),
        ("rtx-pro-6000-gb300.txt", ["12.0", "10.3"]),
    ],
)
def test_several_kinds(tmp_path: Path, name: str, capabilities: list[str]) -> None:
    assert [gpu.compute_capability for gpu in reading(tmp_path, name).gpus] == capabilities


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("no-driver.txt", 9, "couldn't communicate with the NVIDIA driver"),
        ("version-mismatch.txt", 18, "Driver/library version mismatch"),
        ("no-devices.txt", 6, "No devices were found"),
    ],
)
def test_an_nvidia_smi_that_fails_is_quoted(tmp_path: Path, name: str, code: int, said: str) -> None:
    found = reading(tmp_path, name, code=code)
    assert found.gpus == ()
    assert found.problem.startswith("nvidia-smi fails: ")
    assert said in found.problem


def test_a_lost_gpu_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    lost.write_text(
        "#!/bin/sh\necho '0, NVIDIA H200, 9.0, 143771, 143147, 580.173.02, Disabled'\necho 'Lost GPU 1'\nexit 15\n"
    )
    lost.chmod(0o755)
    assert len(read_gpus(str(lost)).gpus) == 1
    assert "Lost GPU 1" in read_gpus(str(lost)).problem


def refuses(field: str) -> str:
    """A line for a script that answers a query for `field` as an nvidia-smi that does not know it."""
    complaint = f'Field "{field}" is not a valid field to query.'
    return f"case \"$1\" in *{field}*) printf '%s\\n\\n' '{complaint}'; exit 2;; esac"


def test_an_nvidia_smi_without_capability_and_mig_is_asked_for_the_rest(tmp_path: Path) -> None:
    old = tmp_path / "old"
    row = "0, GeForce RTX 3090, 24268, 23900, 455.45.01"
    old.write_text(f"#!/bin/sh\n{refuses('compute_cap')}\n{refuses('mig.mode.current')}\necho '{row}'\n")
    old.chmod(0o755)
    expected = Gpu("GeForce RTX 3090", "", 24268 * MIB, "455.45.01", free=23900 * MIB)
    assert read_gpus(str(old)) == GpuReading((expected,))


def test_an_nvidia_smi_of_the_future_says_its_driver_by_another_name(tmp_path: Path) -> None:
    found = reading(tmp_path, "h200.txt", body=refuses("driver_version"))
    assert [gpu.driver for gpu in found.gpus] == ["580.173.02"]


def test_one_that_knows_no_field_ends_the_questions(tmp_path: Path) -> None:
    found = reading(tmp_path, "unknown-field.txt", code=2)
    assert found.gpus == ()
    assert "is not a valid field" in found.problem


def test_a_hanging_nvidia_smi_is_given_up_and_ended_with_its_children(tmp_path: Path) -> None:
    hanging, child = tmp_path / "hanging", tmp_path / "child"
    child.symlink_to(shutil.which("sleep") or "")
    hanging.write_text(f"#!/bin/sh\n{child} 600 &\nwait\n")
    hanging.chmod(0o755)
    found = read_gpus(str(hanging), timeout=1)
    assert found == GpuReading((), "nvidia-smi did not respond within 1 s: the driver hangs")
    eventually(lambda: not started_from(tmp_path))


def started_from(directory: Path) -> list[str]:
    """The processes with a path below a directory among their arguments; a zombie has no arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # it may end meanwhile
        with contextlib.suppress(OSError):
            if str(directory) in (process / "cmdline").read_text():
                found.append(process.name)
    return found


def test_no_nvidia_smi_and_no_gpu_is_no_problem(tmp_path: Path) -> None:
    assert read_gpus(str(tmp_path / "absent"), pci_devices=tmp_path) == GpuReading(())


def test_a_gpu_on_the_bus_without_nvidia_smi_is_one(tmp_path: Path) -> None:
    for name, vendor, kind in (
        ("01:00.0", "0x10de", "0x030000"),
        ("01:00.1", "0x10de", "0x040300"),
        ("02", "0x1002", "0x03"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
    found = read_gpus(str(tmp_path / "absent"), pci_devices=tmp_path)
    assert found.problem.startswith("1 NVIDIA GPU on the PCI bus, but nvidia-smi is not installed")


def test_under_wsl_the_one_from_windows_is_asked_where_the_other_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plays(tmp_path / "bin", "nvidia-smi", "no-driver.txt", code=9)
    windows = plays(tmp_path / "wsl", "nvidia-smi", "n1x-wsl.txt")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(nvidia_smi, "WSL", Path(windows))
    assert [gpu.name for gpu in read_gpus().gpus] == ["JMJWOA-Generic-GPU"]
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert [gpu.name for gpu in read_gpus().gpus] == ["JMJWOA-Generic-GPU"]


def test_the_facts_carry_the_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plays(tmp_path, "nvidia-smi", "version-mismatch.txt", code=18)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = read_facts()
    assert facts.gpus == ()
    assert "version mismatch" in facts.gpu_problem


@pytest.mark.parametrize(
    "body", ["exit 127", "printf '\\377\\376'", "echo '0, only, three'", "exec nothing-of-this-name"]
)
def test_whatever_it_does_nothing_is_raised(tmp_path: Path, body: str) -> None:
    broken = tmp_path / "broken"
    broken.write_text(f"#!/bin/sh\n{body}\n")
    broken.chmod(0o755)
    assert read_gpus(str(broken)).gpus == ()
    assert read_gpus(str(broken)).problem


def test_the_condition_comes_with_the_same_query(tmp_path: Path) -> None:
    program = reports(tmp_path, {"power.limit": "100.00"}, {"pcie.link.width.current": "1"})
    log = tmp_path / "queries"
    logged = tmp_path / "logged"
    logged.write_text(f'#!/bin/sh\necho >> {log}\nexec {program} "$@"\n')
    logged.chmod(0o755)
    first, second = read_gpus(str(logged)).gpus
    assert (first.condition["power.limit"], second.condition["pcie.link.width.current"]) == ("100.00", "1")
    assert "retired_pages.pending" not in first.condition
    assert log.read_text() == "\n"


def test_a_gpu_whose_cells_are_errors_is_a_problem_beside_the_others(tmp_path: Path) -> None:
    lost = {"name": "[GPU is lost]", "compute_cap": "[GPU is lost]", "memory.total": "[GPU is lost]"}
    found = read_gpus(reports(tmp_path, {}, lost))
    assert [gpu.index for gpu in found.gpus] == [0]
    assert found.problem == "nvidia-smi does not reach GPU 1, which is lost or needs a reset"


@pytest.mark.parametrize(
    "tail", ["Lost GPU 1", "Unable to determine the device handle for GPU1: 0000:41:00.0: Unknown Error"]
)
def test_a_lost_gpu_is_told_from_a_warning(tmp_path: Path, tail: str) -> None:
    assert nvidia_smi.is_lost(read_gpus(reports(tmp_path / "lost", {}, tail=f"{tail}\n", code=15)).problem)
    assert nvidia_smi.is_lost(read_gpus(reports(tmp_path / "silent", {}, code=15)).problem)
    warned = read_gpus(
        reports(tmp_path / "warned", {}, tail="WARNING: infoROM is corrupted at gpu 0000:01:00.0\n", code=14)
    )
    assert warned.problem
    assert not nvidia_smi.is_lost(warned.problem)
