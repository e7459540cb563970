"""`fleet up` installs this version from a wheel, with the real pip, into an environment of its own on the host."""

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_deploy import __version__
from dflash_deploy.errors import ExitCode
from dflash_deploy.features.fleet.scripts import ROOT as ENVIRONMENTS
from tests.support.commands import checked
from tests.support.fleet_lab import Lab

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel of this checkout, and all that it needs."""
    out = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)], check=True, capture_output=True
    )
    (wheel,) = out.glob("*.whl")
    checked(sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(out), str(wheel), timeout=600)
    return out


def test_a_wheel_is_carried_and_installed_once_also_after_a_kill(hosts: Lab, wheels: Path) -> None:
    host = hosts.hosts[0]
    # the host reaches no index but this directory
    index = (f"SetEnv PIP_NO_INDEX=1 PIP_FIND_LINKS={wheels} PIP_EXTRA_INDEX_URL= PIP_CONFIG_FILE=/dev/null",)
    host.stop()
    host.start(server_lines=index)
    hosts.wait_for(host)
    (wheel,) = wheels.glob("dflash_deploy-*.whl")
    hosts.write_fleet(f"install: {{wheel: {wheel}}}", program="")

    # an installation that was killed: an environment without its marker
    (place,) = [host.home / ENVIRONMENTS / f"{__version__}-{digest(wheel)}"]
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "dflash-deploy").write_text("half")
    ran = hosts.dflash("fleet", "up", "--host", host.name, "--json")
    # it is installed and has the settings; the environment has no engine
    assert ran.code is ExitCode.PREFLIGHT, ran.err
    assert "is not installed in the environment of" in ran.document["error"]["message"]
    assert f"copies {wheel.name}" in ran.err
    assert (place / "complete").is_file()
    env = (host.deployment / ".env").read_text()
    assert f"MODEL_HOST_PATH={place}/lib/" in env

    ran = hosts.dflash("fleet", "up", "--host", host.name, "--json")
    assert ran.code is ExitCode.PREFLIGHT
    assert "copies" not in ran.err
    assert "installs" not in ran.err
    status = hosts.dflash("fleet", "status", "--host", host.name, "--json").succeeded()
    assert status.document["data"]["hosts"][0]["state"] == "absent"


def digest(wheel: Path) -> str:
    return checked("sha256sum", str(wheel))[:12]


def test_a_host_without_the_packages_names_what_is_missing(hosts: Lab) -> None:
    host = hosts.hosts[0]
    host.stop()
    host.start(server_lines=("SetEnv PIP_NO_INDEX=1 PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS=",))
    hosts.wait_for(host)
    hosts.write_fleet(program="")
    ran = hosts.dflash("fleet", "up", "--host", host.name, "--json")
    assert ran.code is ExitCode.PREFLIGHT, ran.err
    assert "package index does not have all packages" in ran.document["error"]["message"]
    assert "install.wheel" in ran.document["error"]["hint"]
    assert not list((host.home / ENVIRONMENTS).glob("*/complete"))


def test_a_wheel_of_another_version_is_refused(hosts: Lab) -> None:
    hosts.write_fleet("install: {wheel: dflash_deploy-0.0.9-py3-none-any.whl}", program="")
    ran = hosts.dflash("fleet", "status")
    assert ran.code is ExitCode.USAGE
    assert "is not a wheel of dflash-deploy 0.1.0" in ran.err
