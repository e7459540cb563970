"""The command lines of SSH, by equality: what is asked of it, and what never is."""

from dflash_deploy.features.fleet.file import Fleet, FleetHost
from dflash_deploy.features.fleet.ssh import ssh_command

PLAIN = FleetHost(name="a", address="10.0.0.1")
WHOLE = FleetHost(name="b", address="spark-b.lan", user="nvidia", port=2222)

OPTIONS = [
    "-o", "BatchMode=yes",
    "-o", "StrictHostKeyChecking=yes",
    "-o", "UpdateHostKeys=no",
    "-o", "ForwardAgent=no",
    "-o", "ForwardX11=no",
    "-o", "ClearAllForwardings=yes",
    "-o", "PermitLocalCommand=no",
    "-o", "ControlMaster=no",
    "-o", "ControlPath=none",
    "-o", "ConnectTimeout=10",
    "-o", "ServerAliveInterval=5",
    "-o", "ServerAliveCountMax=3",
    "-o", "LogLevel=ERROR",
]  # fmt: skip


def test_a_host_with_an_address_only() -> None:
    command = ssh_command(Fleet(hosts=(PLAIN,)), PLAIN, ["true"])
    assert command == ["ssh", "-T", *OPTIONS, "--", "10.0.0.1", "true"]


def test_user_port_and_configuration_are_options_before_the_address() -> None:
    fleet = Fleet(ssh_config="/home/me/config", hosts=(WHOLE,))
    command = ssh_command(fleet, WHOLE, ["df", "-Pk", "/srv/a b"])
    assert command == [
        "ssh", "-T", "-F", "/home/me/config", *OPTIONS, "-p", "2222", "-l", "nvidia", "--", "spark-b.lan",
        "df -Pk '/srv/a b'",
    ]  # fmt: skip


def test_words_are_quoted_for_the_shell_of_the_host() -> None:
    command = ssh_command(Fleet(hosts=(PLAIN,)), PLAIN, ["echo", "$(reboot)", "it's; rm -rf ~"])
    assert command[-1] == "echo '$(reboot)' 'it'\"'\"'s; rm -rf ~'"
