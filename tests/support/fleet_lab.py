"""Hosts as network namespaces: each with an SSH server, host keys and a home directory of its own, joined by cables.

A terminal `t` reaches each host over a cable of its own; a further cable, the fabric, joins the two hosts. A namespace
has its own ports and interfaces; a host's mount namespace gives root another home directory.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cli import Ran, dflash
from tests.support.commands import apt_install, checked, is_installed, run_command, wait_until

# The command of the tests' environment, which all hosts can execute.
PROGRAM = str(Path(sys.executable).with_name("dflash-deploy"))

SSHD = "/usr/sbin/sshd"

# The interfaces of a host: its cable to the terminal, and the one between the hosts.
TO_TERMINAL, FABRIC = "eth0", "fab0"


@dataclass
class Host:
    """One host: `address` on the cable to the terminal, `fabric` on the one between the hosts."""

    name: str
    namespace: str
    address: str
    fabric: str
    root: Path
    server: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def home(self) -> Path:
        """The home directory of its only user, root."""
        return self.root / "home"

    @property
    def deployment(self) -> Path:
        """The deployment directory that a fleet makes."""
        return self.home / "dflash"

    def sh(self, script: str) -> str:
        """Run a script on the host, in its network."""
        return checked("ip", "netns", "exec", self.namespace, "sh", "-c", script)

    def start(self, *, server_lines: tuple[str, ...] = (), before: str = "") -> None:
        """Start its SSH server with what its files say now; `before` is a script that runs in its mount namespace."""
        config = self.root / "sshd_config"
        lines = (
            f"HostKey {self.root}/host_key",
            f"AuthorizedKeysFile {self.root}/authorized_keys",
            "StrictModes no",
            "UsePAM no",
            "PidFile none",
            "PasswordAuthentication no",
            "ListenAddress 0.0.0.0",
            *server_lines,
        )
        config.write_text("\n".join(lines) + "\n")
        script = f"mount --bind {self.root}/etc /etc; {before}exec {SSHD} -D -e -f {config}"
        with (self.root / "sshd.log").open("ab") as log:
            self.server = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, "sh", "-c", script], stdin=subprocess.DEVNULL, stderr=log
            )

    def stop(self) -> None:
        """End everything that runs on the host."""
        for pid in map(int, run_command("ip", "netns", "pids", self.namespace).stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.server is not None:
            self.server.wait(10)
            self.server = None

    def new_host_key(self) -> None:
        """Replace the SSH key of the host, as a new installation does."""
        for file in self.root.glob("host_key*"):
            file.unlink()
        keygen(self.root / "host_key")

    @contextmanager
    def unplugged(self, cable: str = TO_TERMINAL) -> Iterator[None]:
        """The cable to the terminal, or the fabric, is out as long as the block runs."""
        self.link("down", cable)
        try:
            yield
        finally:
            self.link("up", cable)

    def link(self, state: str, cable: str = TO_TERMINAL) -> None:
        """Plug a cable in (`up`) or out (`down`)."""
        checked("ip", "-n", self.namespace, "link", "set", cable, state)

    def processes(self, words: str) -> list[int]:
        """The PIDs of the processes of the host with these words in their arguments."""
        return pids_in(self.namespace, words)


@dataclass
class Lab:
    """A terminal and two hosts. `directory` is the deployment directory on the terminal."""

    root: Path
    terminal: str
    hosts: tuple[Host, Host]
    directory: Path

    @property
    def ssh_config(self) -> Path:
        """The SSH configuration of the terminal's user."""
        return self.root / "ssh_config"

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words before a command that runs on the terminal."""
        return ("ip", "netns", "exec", self.terminal)

    def dflash(self, *args: str) -> Ran:
        """Run `dflash-deploy` on the terminal, beside `fleet.yaml`; its `ssh` has the configuration of the terminal."""
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        return dflash(*args, at=self.directory, prefix=self.prefix, environment={"PATH": path})

    def write_fleet(self, *lines: str) -> None:
        """Write fleet.yaml; `lines` are further fields of each host."""
        text = ["hosts:"]
        for host in self.hosts:
            text += [f"  - name: {host.name}", f"    ssh: {host.address}", *(f"    {line}" for line in lines)]
        (self.directory / "fleet.yaml").write_text("\n".join(text) + "\n")

    def arguments(self) -> str:
        """The arguments of every process of the hosts."""
        pids = (pid for host in self.hosts for pid in host.sh(f"ip netns pids {host.namespace}").split())
        found = []
        for pid in pids:
            with suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        return "\n".join(found)

    def trust(self) -> None:
        """Put the present keys of the hosts into known_hosts."""
        keys = ((host.root / "host_key.pub").read_text().split()[:2] for host in self.hosts)
        lines = (f"{host.address} {' '.join(key)}\n" for host, key in zip(self.hosts, keys, strict=True))
        (self.root / "known_hosts").write_text("".join(lines))

    def clear(self) -> None:
        """Bring the hosts into their first state: the program installed, nothing running, cables in, keys known."""
        for host in self.hosts:
            host.stop()
            shutil.rmtree(host.home, ignore_errors=True)
            host.home.mkdir(mode=0o700)
            install(host)
            checked("ip", "-n", host.namespace, "link", "set", TO_TERMINAL, "up")
            host.start()
        self.trust()
        for host in self.hosts:
            self.wait_for(host)

    def wait_for(self, host: Host) -> None:
        """Wait until the SSH server of a host answers."""
        command = (*self.prefix, "ssh", "-F", str(self.ssh_config), "-o", "BatchMode=yes", host.address, "true")
        assert wait_until(lambda: run_command(*command).returncode == 0, 60), (host.root / "sshd.log").read_text()


def states(document: dict[str, Any]) -> list[str]:
    """The states of the hosts in the document of a command of `fleet`."""
    return [host["state"] for host in document["data"]["hosts"]]


def install(host: Host) -> None:
    """Give a host the program where pipx puts it."""
    program = host.home / ".local" / "bin" / "dflash-deploy"
    program.parent.mkdir(parents=True)
    program.symlink_to(PROGRAM)


def keygen(file: Path) -> None:
    """Make an SSH key without a passphrase."""
    checked("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file))


def ensure_server() -> None:
    """Install what the hosts need. Raises RuntimeError where that is not possible, with the reason."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise RuntimeError("hosts as network namespaces need Linux and root")
    packages = {"ip": "iproute2", "ssh": "openssh-client", SSHD: "openssh-server", "flock": "util-linux"}
    if missing := [package for program, package in packages.items() if not is_installed(program)]:
        apt_install(*missing)
    Path("/run/sshd").mkdir(exist_ok=True)


@contextmanager
def lab(root: Path, tag: str = "dfl") -> Iterator[Lab]:
    """Two hosts and a terminal; all of it is gone after the block. The names of the namespaces begin with `tag`."""
    ensure_server()
    tag = f"{tag}{os.getpid()}"
    names = {name: f"{tag}{name}" for name in ("t", "a", "b")}
    hosts = tuple(
        Host(f"host-{name}", names[name], f"10.77.{number}.2", f"10.77.9.{number}", root / name)
        for number, name in ((1, "a"), (2, "b"))
    )
    found = Lab(root, names["t"], (hosts[0], hosts[1]), root / "fleet")
    try:
        for namespace in names.values():
            checked("ip", "netns", "add", namespace)
            checked("ip", "-n", namespace, "link", "set", "lo", "up")
        for number, host in enumerate(hosts, 1):
            cable(
                (names["t"], f"to{number}", f"10.77.{number}.1/24"), (host.namespace, TO_TERMINAL, f"{host.address}/24")
            )
        cable(*((host.namespace, FABRIC, f"{host.fabric}/24") for host in hosts), mtu=9000)
        fill(found)
        yield found
    finally:
        for host in hosts:
            host.stop()
        for namespace in names.values():
            run_command("ip", "netns", "del", namespace)


def cable(*ends: tuple[str, str, str], mtu: int = 1500) -> None:
    """Join two namespaces: each end is a namespace, an interface and an address."""
    (one, one_name, _), (other, other_name, _) = ends
    checked("ip", "-n", one, "link", "add", one_name, "mtu", str(mtu), "type", "veth",
            "peer", "name", other_name, "mtu", str(mtu), "netns", other)  # fmt: skip
    for namespace, name, address in ends:
        checked("ip", "-n", namespace, "address", "add", address, "dev", name)
        checked("ip", "-n", namespace, "link", "set", name, "up")


def pids_in(namespace: str, words: str = "") -> list[int]:
    """The PIDs of the processes of a namespace with these words in their arguments."""
    found = []
    for pid in map(int, run_command("ip", "netns", "pids", namespace).stdout.split()):
        with suppress(OSError):
            if words in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "):
                found.append(pid)
    return found


def fill(found: Lab) -> None:
    """Write the files of the hosts and of the terminal's user."""
    found.directory.mkdir(parents=True)
    keygen(found.root / "id")
    passwd = Path("/etc/passwd").read_text().splitlines()
    for host in found.hosts:
        host.home.mkdir(parents=True, mode=0o700)
        host.new_host_key()
        (host.root / "authorized_keys").write_text((found.root / "id.pub").read_text())
        lines = (line for line in passwd if not line.startswith("root:"))
        # the whole directory: a file that is mounted over /etc/passwd is gone when an installed package adds a user
        shutil.copytree("/etc", host.root / "etc", symlinks=True)
        (host.root / "etc" / "passwd").write_text("\n".join((f"root:x:0:0:root:{host.home}:/bin/sh", *lines)) + "\n")
    found.ssh_config.write_text(
        f"User root\nIdentityFile {found.root}/id\nIdentitiesOnly yes\nUserKnownHostsFile {found.root}/known_hosts\n"
        "GlobalKnownHostsFile /dev/null\n"
    )
    ssh = found.root / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {found.ssh_config} "$@"\n')
    ssh.chmod(0o755)
