"""`python -m tools.cluster [SECONDS]`: measures a Ray cluster of two nodes on this machine, and prints a table.

Root on Linux, and `make .venv-ray/.ready`. SECONDS of load for each failure, 300 by default. Half an hour on two cores.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tools.cluster.lab import REPLICA, Cluster, cluster, outcome

CLIENTS = 8
BEFORE = 10.0  # seconds of load before something dies


def throughput(nodes: Cluster, seconds: float = 30) -> float:
    """Tokens/s of the clients; the first requests are not counted."""
    outcome(nodes.load(10, CLIENTS))
    return float(outcome(nodes.load(seconds, CLIENTS))["tokens_per_second"])


def under_load(nodes: Cluster, seconds: float, act: Callable[[], None]) -> str:
    """What clients see while something happens, and the seconds until all replicas run again."""
    clients = nodes.load(seconds, CLIENTS)
    time.sleep(BEFORE)
    begun = time.monotonic()
    act()
    nodes.wait_changed()
    nodes.wait_whole()
    whole = time.monotonic() - begun
    seen = outcome(clients)
    first = f"; {seen['failed'][0]['problem']}" if seen["failed"] else ""
    return (
        f"{seen['failures']} of {seen['requests']} failed; slowest {seen['slow']} s; whole after {whole:.0f} s{first}"
    )


def node_dies_and_returns(nodes: Cluster) -> None:
    """A machine that is switched off and on again."""
    nodes.other.kill()
    time.sleep(20)
    nodes.start(nodes.other)


def head_dies_and_returns(nodes: Cluster, **variables: str) -> str:
    """The endpoint is gone until Ray is started and the application deployed again."""
    begun = time.monotonic()
    for node in (nodes.head, nodes.other):
        node.kill()
    for node in (nodes.head, nodes.other):
        nodes.start(node, **variables)
    nodes.deploy()
    nodes.wait_whole(health=not variables)
    return f"{time.monotonic() - begun:.0f} s until two replicas answer again"


def main(seconds: float) -> None:
    """Measure and print."""

    def said(what: str, found: str) -> None:
        print(f"| {what} | {found} |", flush=True)

    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as root, cluster(Path(root)) as nodes:
        said("start to two replicas that answer", f"{time.monotonic() - begun:.0f} s")
        two = throughput(nodes)
        said("a replica is killed", under_load(nodes, seconds, lambda: nodes.other.kill(REPLICA)))
        said("a node is killed, and starts again", under_load(nodes, seconds, lambda: node_dies_and_returns(nodes)))
        said("settings change (`serve deploy`)", under_load(nodes, seconds, lambda: nodes.deploy(max_num_seqs=3)))
        nodes.deploy(num_replicas=1)
        nodes.wait_whole(1)
        one = throughput(nodes)
        said("two replicas against one", f"{two / one:.2f} times the tokens/s ({two:.0f}, {one:.0f})")
        said("the head is lost", head_dies_and_returns(nodes))
        with_gateway = throughput(nodes)
        head_dies_and_returns(nodes, RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH="")
        without = throughput(nodes)
        said(
            "with the gateway against without",
            f"{with_gateway / without:.2f} times ({with_gateway:.0f}, {without:.0f})",
        )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 300)
