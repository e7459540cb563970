"""The kernel's lines, by the time since which they count."""

from dflash_deploy.host.machine import lines_since

DMESG = """\
[    0.000000] Linux version 6.1.0
[ 1200.250000] Memory cgroup out of memory: Killed process 24045 (VLLM::EngineCor)
a line without a stamp
[26100.590796] eth0: link up
"""


def test_lines_count_from_a_moment_on() -> None:
    assert lines_since(DMESG, 1200.0) == (
        "Memory cgroup out of memory: Killed process 24045 (VLLM::EngineCor)",
        "eth0: link up",
    )
    assert lines_since(DMESG, 26101.0) == ()
