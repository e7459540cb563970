"""`make demo-down` stops the demos that are here, and installs nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TOOL = '#!/bin/sh\necho "$0 $*"\ncase "$*" in *broken*) exit 5;; esac\n'


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone in which nothing is installed and no demo ran; its Python cannot install."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def ran(clone: Path, demo: str, environment: str) -> None:
    """Leave what a demo leaves: its deployment, and the environment that started it."""
    (clone / demo).mkdir()
    (clone / demo / ".env").touch()
    tool = clone / environment / "bin/dflash-deploy"
    tool.parent.mkdir(parents=True)
    tool.write_text(TOOL)
    tool.chmod(0o755)


def demo_down(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it without the variables of a `make` around the tests."""
    environment = {
        name: value for name, value in os.environ.items() if name != "ENGINE" and not name.startswith("MAKE")
    }
    command = ["make", "demo-down", "PYTHON=false", *arguments]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)


def test_the_demo_of_llama_cpp_alone_is_stopped_without_an_installation(clone: Path) -> None:
    ran(clone, "demo-llamacpp", ".venv-llamacpp")
    done = demo_down(clone)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ".venv-llamacpp/bin/dflash-deploy down --dir demo-llamacpp\n"


def test_both_demos_are_stopped_and_with_engine_only_one(clone: Path) -> None:
    ran(clone, "demo", ".venv")
    ran(clone, "demo-llamacpp", ".venv-llamacpp")
    vllm, llamacpp = (f".venv{of}/bin/dflash-deploy down --dir demo{of}" for of in ("", "-llamacpp"))
    assert demo_down(clone).stdout.splitlines() == [vllm, llamacpp]
    assert demo_down(clone, "ENGINE=vllm").stdout.splitlines() == [vllm]
    assert demo_down(clone, "ENGINE=llamacpp").stdout.splitlines() == [llamacpp]


def test_an_engine_that_the_demo_does_not_have_is_refused(clone: Path) -> None:
    ran(clone, "demo", ".venv")
    done = demo_down(clone, "ENGINE=sglang")
    assert (done.returncode, done.stdout) == (2, "")
    assert "`sglang` is not an engine of the demo (vllm, llamacpp)" in done.stderr
    tests = ["make", "--dry-run", "test-unit", "ENGINE=podman"]
    assert subprocess.run(tests, cwd=clone, capture_output=True, check=False).returncode == 0


def test_without_a_demo_it_says_so(clone: Path) -> None:
    done = demo_down(clone)
    assert (done.returncode, done.stdout) == (0, "no demo here: demo demo-llamacpp\n")


def test_a_demo_that_no_environment_can_stop_is_named(clone: Path) -> None:
    ran(clone, "demo", ".venv")
    (clone / ".venv/bin/dflash-deploy").unlink()
    done = demo_down(clone)
    assert done.returncode != 0
    assert done.stdout.startswith("no environment can stop demo\nhint: `make ")


def test_an_environment_stops_the_demo_of_the_other_one(clone: Path) -> None:
    ran(clone, "demo", ".venv-llamacpp")
    assert demo_down(clone).stdout == ".venv-llamacpp/bin/dflash-deploy down --dir demo\n"


def test_a_demo_that_does_not_stop_fails_after_the_other_one(clone: Path) -> None:
    ran(clone, "demo", ".venv")
    ran(clone, "demo-llamacpp", ".venv-llamacpp")
    (clone / ".venv/bin/dflash-deploy").write_text(TOOL.replace("broken", "demo"))
    done = demo_down(clone)
    assert done.returncode != 0
    assert len(done.stdout.splitlines()) == 2
