"""What people install is the wheel, and it holds all that the checkout has."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tools.reference import manual

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # the wheel is built from the sdist, so that the test sees if the sdist lacks a file
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_it_carries_what_lies_beside_the_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("compose", "connect", "env-templates", "images", "models/tiny", "monitoring"):
        for file in (path for path in (ROOT / folder).rglob("*") if path.is_file()):
            assert f"dflash_deploy/_assets/{file.relative_to(ROOT)}" in names
    assert not any(name.startswith(("tests/", "tools/", "models/")) for name in names)


def test_its_manual_page_is_that_of_the_command_line(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        (name,) = (one for one in content.namelist() if one.endswith(".data/data/share/man/man1/dflash-deploy.1"))
        assert content.read(name).decode() == manual.page()


def test_it_offers_vllm_the_loader_as_the_image_does(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if re.fullmatch(r"[^/]+\.dist-info/entry_points\.txt", name))
        offered = content.read(name).decode()
    image = (ROOT / "images/vllm/dflash_serve.dist-info/entry_points.txt").read_text()
    assert image.strip() in offered


def test_installed_in_a_clean_environment_it_makes_a_deployment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    assert (environment / "share/man/man1/dflash-deploy.1").is_file()
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    command = [
        str(environment / "bin/dflash-deploy"),
        "init",
        "--profile",
        "cpu",
        # without Docker the default would be llama.cpp, which has another image
        "--engine",
        "vllm",
        "--dir",
        str(tmp_path / "deployment"),
    ]
    subprocess.run(command, check=True, cwd=tmp_path, env=clean, capture_output=True)
    text = (tmp_path / "deployment/.env").read_text()
    assert f"MODEL_HOST_PATH={environment}" in text
    assert (tmp_path / "deployment/.dflash/build/images/vllm/Dockerfile").is_file()
    assert (tmp_path / "deployment/compose.yaml").is_file()
