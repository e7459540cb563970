"""A Ray cluster of two nodes as network namespaces, and a namespace outside that only reaches the head.

Both nodes run Ray and vLLM of `.venv-ray`, with the files that `export ray` wrote.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dflash_deploy.deployment.directory import Deployment, remember_good
from dflash_deploy.redact import generate_key
from dflash_deploy.serve.engines.installed import CPU_SITE
from tests.support.cli import Ran, dflash
from tests.support.commands import apt_install, checked, eventually, is_installed, run_command, wait_until
from tests.support.fleet_lab import cable, pids_in

ROOT = Path(__file__).parents[2]
RAY = ROOT / ".venv-ray" / "bin"
REPLICA = "ServeReplica:dflash:LLMServer"  # in the name of the process of a replica
PORT, DASHBOARD = 8000, "http://127.0.0.1:8265"
READY = 900  # seconds until two replicas answer: 45 on two idle cores, many times that beside other engines

# Of a cluster on one small machine: one thread for each replica, nothing compiled, and no lower priority than others.
ON_TWO_CORES = {
    "PYTHONPATH": str(CPU_SITE),
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",
}


@dataclass(frozen=True)
class Node:
    """A machine of the cluster."""

    namespace: str
    address: str

    def kill(self, words: str = "") -> None:
        """Kill these processes at once, all of the node without words."""
        for pid in pids_in(self.namespace, words):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Cluster:
    """The two nodes, the deployment that was exported, and what an outsider can do."""

    def __init__(self, root: Path, tag: str) -> None:
        self.root = root
        self.head, self.other = Node(f"{tag}h", "10.88.0.1"), Node(f"{tag}w", "10.88.0.2")
        self.outside, self.url = f"{tag}o", f"http://10.88.9.1:{PORT}"
        self.box, self.files, self.key_file = root / "box", root / "cluster", root / "key"
        # sockets of Ray are below it, and their paths are short
        self.temporary = Path(f"/tmp/{tag}")

    def export(self) -> Ran:
        """Make a deployment whose settings answered, and export it."""
        options = ("--profile", "cpu", "--engine", "vllm", "--runtime", "native", "--host", "0.0.0.0")
        dflash("init", *options, "--port", str(PORT), at=self.box).succeeded()
        remember_good(Deployment(self.box))
        self.key_file.write_text(Deployment(self.box).key.reveal())
        (self.root / "token").write_text(generate_key().reveal())
        return dflash("export", "ray", str(self.files), at=self.box).succeeded()

    @property
    def environment(self) -> dict[str, str]:
        """Of Ray's processes: what `export ray` wrote, and what the tests add."""
        lines = (self.files / "ray.env").read_text().splitlines()
        own = dict(line.split("=", 1) for line in lines)
        token = {"RAY_AUTH_TOKEN_PATH": str(self.root / "token"), "HOME": str(self.root)}
        return {**own, **ON_TWO_CORES, **token}

    def on(self, node: Node, *words: str, **variables: str) -> str:
        """Run a command of Ray on a node, to its end."""
        return checked(*self.command(node, *words), variables={**self.environment, **variables}, timeout=READY)

    def command(self, node: Node, program: str, *words: str) -> tuple[str, ...]:
        """The words that run a program of Ray on a node."""
        return ("ip", "netns", "exec", node.namespace, str(RAY / program), *words)

    def start(self, node: Node, **variables: str) -> None:
        """Start Ray on a node: the head first."""
        if node is self.head:
            shutil.rmtree(self.temporary, ignore_errors=True)
            place = ["--head", f"--temp-dir={self.temporary}", "--include-dashboard=true"]
        else:
            place = [f"--address={self.head.address}:6379"]
        small = ("--num-cpus=3", "--object-store-memory=150000000", "--disable-usage-stats")
        self.on(node, "ray", "start", *place, f"--node-ip-address={node.address}", *small, **variables)

    def deploy(self, **changes: Any) -> None:
        """Apply serve.yaml; `changes` are other values of an engine's argument or of `num_replicas`."""
        served = yaml.safe_load((self.files / "serve.yaml").read_text())
        (one,) = served["applications"][0]["args"]["llm_configs"]
        for name, value in changes.items():
            one["deployment_config" if name == "num_replicas" else "engine_kwargs"][name] = value
        (self.root / "serve.yaml").write_text(yaml.safe_dump(served))
        self.on(self.head, "serve", "deploy", str(self.root / "serve.yaml"), "-a", DASHBOARD)

    def running(self) -> int:
        """Replicas that run, while no other one starts or stops; 0 if there are such."""
        token = (self.root / "token").read_text()
        asked = (
            "curl",
            "-s",
            "-m",
            "60",
            "-H",
            f"authorization: Bearer {token}",
            f"{DASHBOARD}/api/serve/applications/",
        )
        with suppress(ValueError, LookupError):
            applications = json.loads(run_command("ip", "netns", "exec", self.head.namespace, *asked).stdout)
            deployments = applications["applications"]["dflash"]["deployments"]
            states = [one["state"] for name in deployments if "LLM" in name for one in deployments[name]["replicas"]]
            return len(states) if set(states) == {"RUNNING"} else 0
        return 0

    def wait_changed(self) -> None:
        """Wait until a replica starts, stops or is missing."""
        assert wait_until(lambda: self.running() != 2, 120), self.logs()

    def wait_whole(self, replicas: int = 2, *, health: bool = True) -> None:
        """Wait until that many replicas run, and a token is generated. `health`: the gateway says so."""
        assert wait_until(lambda: self.running() == replicas, READY), self.logs()
        if health:
            eventually(lambda: self.status("/health") == 200, READY)

    def status(self, path: str, key: str = "", port: int = PORT) -> int:
        """The status of a GET from outside; 0 if nothing answers."""
        url = f"{self.url.rpartition(':')[0]}:{port}{path}"
        header = ("-H", f"authorization: Bearer {key}") if key else ()
        asked = ("curl", "-s", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}", *header, url)
        return int(run_command("ip", "netns", "exec", self.outside, *asked).stdout or 0)

    def load(self, seconds: float, clients: int, key_file: Path | None = None) -> subprocess.Popen[str]:
        """Clients outside that ask one question after another; `outcome` waits for them."""
        asked = (self.url, str(key_file or self.key_file), str(seconds), str(clients))
        words = (sys.executable, "-m", "tools.cluster.load", *asked)
        command = ("ip", "netns", "exec", self.outside, *words)
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def logs(self) -> str:
        """What Ray's controller says last."""
        files = sorted((self.temporary / "session_latest" / "logs" / "serve").glob("controller_*.log"))
        return "\n".join(files[-1].read_text().splitlines()[-20:]) if files else "no controller"


def outcome(load: subprocess.Popen[str]) -> dict[str, Any]:
    """What the clients saw."""
    found: dict[str, Any] = json.loads(load.communicate(timeout=READY)[0])
    return found


@contextmanager
def cluster(root: Path) -> Iterator[Cluster]:
    """Two nodes with two replicas that answer; all of it is gone after the block. RuntimeError: not possible here."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise RuntimeError("nodes as network namespaces need Linux and root")
    if missing := [
        package for program, package in {"ip": "iproute2", "curl": "curl"}.items() if not is_installed(program)
    ]:
        apt_install(*missing)
    found = Cluster(root, f"dfr{os.getpid()}")
    namespaces = (found.head.namespace, found.other.namespace, found.outside)
    try:
        for namespace in namespaces:
            checked("ip", "netns", "add", namespace)
            checked("ip", "-n", namespace, "link", "set", "lo", "up")
        head, other = found.head, found.other
        cable((head.namespace, "fab0", f"{head.address}/24"), (other.namespace, "fab0", f"{other.address}/24"))
        cable((head.namespace, "out0", "10.88.9.1/24"), (found.outside, "out0", "10.88.9.2/24"))
        found.box.mkdir(parents=True)
        found.export()
        for node in (head, other):
            found.start(node)
        found.deploy()
        found.wait_whole()
        yield found
    finally:
        for node in (found.head, found.other):
            node.kill()
        for namespace in namespaces:
            run_command("ip", "netns", "del", namespace)
        shutil.rmtree(found.temporary, ignore_errors=True)
