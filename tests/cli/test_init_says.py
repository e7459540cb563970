"""What `init` says about the models, and about machines that serve together."""

from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash

TWO = ("init", "--profile", "dgx-spark-x2")
RANK_0 = "192.168.100.1"


def test_two_machines_without_the_address_of_rank_0_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    ran = dflash(*TWO, at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert "--master-addr is missing" in ran.err
    assert list(tmp_path.iterdir()) == []
    dflash(*TWO, "--master-addr", RANK_0, at=tmp_path).succeeded()


def test_each_rank_is_told_what_to_do_next(tmp_path: Path) -> None:
    first = dflash(*TWO, "--master-addr", RANK_0, "--dir", "first", at=tmp_path).succeeded().out
    second = dflash(*TWO, "--node-rank", "1", "--master-addr", RANK_0, "--dir", "second", at=tmp_path).succeeded().out
    assert f"--node-rank 1 --master-addr {RANK_0}" in first
    assert "start it here first" in second
    for command in (("connect", "curl"), ("test",)):
        ran = dflash(*command, "--dir", "second", at=tmp_path)
        assert ran.code is ExitCode.USAGE
        assert "only rank 0 answers requests" in ran.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--profile", "rtx-3090"), ["(reported)", "text and images"]),
        (
            ("--profile", "rtx-3090", "--model", "qwen3.5-27b-gguf-buun"),
            ["(reported)", "text only, no images; 17.7 GB of weights"],
        ),
        (("--profile", "rtx-3090", "--model", "muse-glimmer-30b-gguf"), ["(untested)"]),
        (("--profile", "dgx-spark", "--recipe", "aeon"), ["safety alignment of this target has been removed"]),
    ],
)
def test_what_the_models_read_and_weigh_and_their_evidence(
    tmp_path: Path, options: tuple[str, ...], says: list[str]
) -> None:
    ran = dflash("init", *options, at=tmp_path).succeeded()
    assert [text for text in says if text not in ran.out] == []


def test_a_plan_that_is_refused_is_to_be_fixed_first(tmp_path: Path) -> None:
    ran = dflash("init", "--profile", "h100", "--max-model-len", "1000000", at=tmp_path).succeeded()
    assert "after the error above is fixed" in ran.out
    assert ran.err.startswith("error: ")
    assert (ran.out + ran.err).count("MAX_MODEL_LEN=1000000") == 1
    assert "start it and wait" not in ran.out


def test_the_next_command_and_what_force_changed_are_printed_as_they_are(tmp_path: Path) -> None:
    options = ("--profile", "cpu", "--runtime", "native", "--dir", "demo")
    first = dflash("init", *options, "--port", "8123", at=tmp_path).succeeded().out
    assert "next     dflash-deploy plan --dir demo   why" in first
    assert "         dflash-deploy up --dir demo     start" in first
    assert "changed" not in first
    again = dflash("init", *options[:4], "--no-drafter", "--force", at=tmp_path / "demo").succeeded().out
    assert "next     dflash-deploy plan   why" in again
    assert "DFLASH_PORT: 8123 -> 8000" in again
    assert f"{tmp_path / 'demo' / '.env.last'} has the settings as they were" in again
    assert "VLLM_API_KEY:" not in again


def test_a_clone_of_the_project_gets_no_deployment(tmp_path: Path) -> None:
    source = tmp_path / "dflash_deploy" / "cli" / "init.py"
    source.parent.mkdir(parents=True)
    source.touch()
    refused = dflash("init", "--profile", "cpu", "--dir", ".", at=tmp_path)
    assert refused.code is ExitCode.USAGE
    assert "hint: name a directory for the deployment: `dflash-deploy init --dir ~/dflash/demo`" in refused.err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["dflash_deploy"]
    home = {"HOME": str(tmp_path / "home")}
    elsewhere = dflash("init", "--profile", "cpu", at=tmp_path, environment=home, elsewhere=True).succeeded().out
    assert f"next     cd {tmp_path}/home/dflash/cpu\n         dflash-deploy plan   why" in elsewhere
    again = dflash("init", "--profile", "cpu", at=tmp_path, environment=home, elsewhere=True)
    assert again.code is ExitCode.USAGE
    assert "`dflash-deploy set --list` shows settings to change" in again.err


def test_a_machine_that_cannot_run_the_plan_says_so_before_up(tmp_path: Path) -> None:
    environment = {"DOCKER_HOST": f"unix://{tmp_path}/docker.sock", "PATH": "/usr/bin:/bin"}
    cpu = dflash("init", "--profile", "cpu", "--runtime", "compose", at=tmp_path, environment=environment).succeeded()
    assert "missing  Docker " in cpu.out
    assert "`dflash-deploy init --force --runtime native`" in cpu.out
    assert "dflash-deploy up     after what is missing works" in cpu.out
    other = dflash("init", "--force", "--profile", "h100", at=tmp_path, environment=environment).succeeded()
    assert "missing " not in other.out
    assert "warning: profile h100 is for one NVIDIA H100 (80 GB); this machine has no GPU" in other.err
