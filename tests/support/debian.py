"""Programs of Debian packages for the tests, taken out of the packages: nothing is installed and no service starts.

A program on the PATH is preferred. The packages are kept in .cache/debian.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.support.commands import checked, command_environment, is_installed, locked, run_command

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "debian"

TEMPLATES = Path("/usr/share/prometheus/alertmanager")

# The package of each program.
PACKAGES = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "prometheus-node-exporter": "prometheus-node-exporter",
    "prometheus-blackbox-exporter": "prometheus-blackbox-exporter",
}


def program(name: str) -> Path:
    """The path of a program. If it cannot be had, the test fails in CI and is skipped with the reason elsewhere."""
    path = command_environment()["PATH"]
    if is_installed(name):
        return Path(shutil.which(name, path=path) or name)
    try:
        return _unpacked(PACKAGES[name]) / "usr" / "bin" / name
    except RuntimeError as problem:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{name} is missing: {problem}")


def monitoring_path() -> str:
    """A PATH with Prometheus and Alertmanager. Alertmanager reads its templates where its package installs them."""
    places = [str(program(name).parent) for name in ("prometheus", "prometheus-alertmanager")]
    unpacked = CACHE / "prometheus-alertmanager" / TEMPLATES.relative_to("/")
    for source in unpacked.glob("*.tmpl") if unpacked.is_dir() else ():
        if (TEMPLATES / source.name).exists():
            continue
        try:
            TEMPLATES.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, TEMPLATES / source.name)
        except PermissionError:
            pytest.skip(f"Alertmanager needs {TEMPLATES}: install prometheus-alertmanager, or run the tests as root")
    return os.pathsep.join([*places, os.environ.get("PATH", os.defpath)])


def _unpacked(package: str) -> Path:
    """The directory with the files of a package, which is downloaded if it is missing."""
    CACHE.mkdir(parents=True, exist_ok=True)
    place = CACHE / package
    with locked(CACHE):
        if place.is_dir():
            return place
        if not (is_installed("apt-get") and is_installed("dpkg-deb")):
            raise RuntimeError(f"install {package}, or run the tests on Debian")
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            _download(package, Path(work))
            (file,) = Path(work).glob("*.deb")
            checked("dpkg-deb", "-x", str(file), f"{work}/files")
            Path(work, "files").rename(place)
    return place


def _download(package: str, place: Path) -> None:
    command = ("sh", "-c", 'cd "$1" && apt-get download -q "$2"', "sh", str(place), package)
    if run_command(*command).returncode:
        # a fresh machine has no lists of packages; only root may fetch them
        checked("apt-get", "update", "-q", timeout=1200)
        checked(*command)
