"""The commands that install an engine, and run this program, work in the environment where one is."""

import sys
from pathlib import Path

import pytest

from dflash_deploy.serve.extras import TORCH_INDEX, install_command, run_command_here

PIP, UV = "version = 3.11.2\n", "version_info = 3.12.3\nuv = 0.13.9\n"


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    (tmp_path / "pyvenv.cfg").write_text(PIP)
    return tmp_path


def test_an_active_environment_is_the_one_of_pip(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_command("llamacpp", prefix) == f"{prefix}/bin/python -m pip install 'dflash-deploy[llamacpp]'"
    monkeypatch.setenv("VIRTUAL_ENV", str(prefix))
    assert install_command("llamacpp", prefix) == "pip install 'dflash-deploy[llamacpp]'"


def test_pip_gets_the_index_of_the_cpu_builds(prefix: Path) -> None:
    assert install_command("cpu", prefix).endswith(f" install --extra-index-url {TORCH_INDEX} 'dflash-deploy[cpu]'")
    assert TORCH_INDEX not in install_command("vllm", prefix)


@pytest.mark.parametrize("config", [PIP, UV])
def test_pipx_installs_into_its_own_environment(prefix: Path, config: str) -> None:
    (prefix / "pyvenv.cfg").write_text(config)
    (prefix / "pipx_metadata.json").touch()
    assert install_command("vllm", prefix) == "pipx runpip dflash-deploy install 'dflash-deploy[vllm]'"


def test_uv_installs_into_an_environment_that_has_no_pip(prefix: Path) -> None:
    (prefix / "pyvenv.cfg").write_text(UV)
    assert install_command("vllm", prefix) == f"uv pip install --python {prefix} 'dflash-deploy[vllm]'"
    assert install_command("cpu", prefix).endswith("--torch-backend cpu 'dflash-deploy[cpu]'")


def test_a_python_without_an_environment_is_named(prefix: Path) -> None:
    (prefix / "pyvenv.cfg").unlink()
    assert install_command("vllm", prefix).startswith(f"{prefix}/bin/python -m pip install ")


def test_the_program_is_run_by_its_name_only_where_a_path_has_it(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script := prefix / "my box" / "dflash-deploy").parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "up"])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert run_command_here(prefix) == f"'{script}'"
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin")
    assert run_command_here(prefix) == "dflash-deploy"
    (other := prefix / "bin" / "dflash-deploy").parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:{script.parent}")
    assert run_command_here(prefix) == f"'{script}'"


def test_uvx_runs_the_program_from_an_environment_that_is_on_the_path_only_meanwhile(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made := prefix / "archive-v0" / "8iKPU5f-53b0exx4").mkdir(parents=True)
    (made / "pyvenv.cfg").write_text(UV)
    monkeypatch.setattr(sys, "argv", [str(made / "bin" / "dflash-deploy"), "up"])
    assert run_command_here(made).startswith("uvx --from git+https://")
    assert run_command_here(made).endswith("/dflash-deploy dflash-deploy")
    source = "git+https://github.com/dflash-deploy/dflash-deploy"
    assert install_command("llamacpp", made) == f"uvx --from 'dflash-deploy[llamacpp] @ {source}' dflash-deploy up"
    assert install_command("cpu", made).startswith("uvx --torch-backend cpu --from ")
