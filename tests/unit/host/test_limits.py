"""The limits of this process: those of its control groups and of `ulimit`."""

import resource
from pathlib import Path

import pytest

from dflash_deploy.host.machine import read_limits


@pytest.fixture(autouse=True)
def _unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, resource.RLIM_INFINITY))


def groups(place: Path, own: str, **files: str) -> dict[str, float]:
    """What is read if the process is in the group `own`; names of files have `__` for `/` and `_` for `.`."""
    (place / "proc" / "self").mkdir(parents=True)
    (place / "proc" / "self" / "cgroup").write_text(f"0::/{own}\n")
    for name, text in files.items():
        file = place / "cgroup" / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return read_limits(place / "proc", place / "cgroup")


def test_the_lowest_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    found = groups(
        tmp_path,
        "user/app",
        user__app__memory_max="max\n",
        user__memory_max="8589934592\n",
        user__app__cpu_max="max 100000\n",
        user__cpu_max="150000 100000\n",
        memory_max="17179869184\n",
    )
    assert found == {"MemoryMax": 8 * 2**30, "CPUQuota": 1.5}


def test_a_container_is_limited_at_its_root(tmp_path: Path) -> None:
    assert groups(tmp_path, "", memory_max="1073741824\n", cpu_max="50000 100000\n") == {
        "MemoryMax": 2**30,
        "CPUQuota": 0.5,
    }


def test_a_machine_without_limits_has_none(tmp_path: Path) -> None:
    assert groups(tmp_path, "init.scope", init_scope__cpu_max="max 100000\n") == {}
    assert read_limits(tmp_path / "absent", tmp_path / "absent") == {}


def test_hard_limits_have_the_names_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096 if kind == resource.RLIMIT_NOFILE else -1))
    assert read_limits(tmp_path, tmp_path) == {"LimitNOFILE": 4096}
