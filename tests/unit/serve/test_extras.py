"""The command that installs an engine works in the environment where it is missing."""

from pathlib import Path

import pytest

from dflash_deploy.serve.extras import TORCH_INDEX, install_command

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
