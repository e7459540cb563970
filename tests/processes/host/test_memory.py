"""The memory of this machine and who holds it, read from the real /proc."""

import os
import subprocess
import sys
from pathlib import Path

from dflash_deploy.host.gpu import Tenant, available_memory, read_memory, running_programs, tenants
from tests.processes.runtime.test_supervisor import eventually

MIB = 2**20


def test_the_kernel_s_figures_are_bytes() -> None:
    memory = read_memory()
    assert 64 * MIB < memory["MemAvailable"] < memory["MemTotal"]
    assert memory["SwapTotal"] >= memory["SwapFree"] >= 0
    assert available_memory()
    assert read_memory(Path("/nowhere")) == {}


def test_a_process_that_holds_memory_is_among_the_tenants() -> None:
    code = f"held = b'x' * {300 * MIB}; print('held', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        holding = next(one for one in tenants() if one.name.endswith(f"(process {process.pid})"))
        process.communicate(b"\n")
    assert 300 * MIB <= holding.memory < 400 * MIB
    eventually(lambda: all(f"(process {process.pid})" not in one.name for one in tenants()))


def test_the_processes_of_a_container_count_together(tmp_path: Path) -> None:
    # /proc of a machine with Docker and the cgroup driver systemd, two processes in one container
    container = "9f" * 32
    for pid, pages, cgroup in (
        (7, 100, f"docker-{container}.scope"),
        (8, 50, f"docker-{container}.scope"),
        (9, 70, ""),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "statm").write_text(f"1000 {pages} 3 4 0 5 0\n")
        (tmp_path / str(pid) / "cgroup").write_text(f"0::/system.slice/{cgroup}\n")
        (tmp_path / str(pid) / "comm").write_text("earlyoom\n")
    page = os.sysconf("SC_PAGE_SIZE")
    assert tenants(tmp_path) == (
        Tenant(f"container {container[:12]}", 150 * page),
        Tenant("earlyoom (process 9)", 70 * page),
    )
    assert running_programs(tmp_path) == {"earlyoom"}
