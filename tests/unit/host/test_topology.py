"""Cores and NUMA nodes of threads are read from sysfs; what it does not say, is a core of its own in node 0."""

from pathlib import Path

from dflash_deploy.host.gpu import Thread, threads_of


def sysfs(place: Path, siblings: dict[int, str], nodes: dict[int, str]) -> tuple[Path, Path]:
    for number, text in siblings.items():
        topology = place / "cpu" / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{text}\n")
    for node, text in nodes.items():
        (place / "node" / f"node{node}").mkdir(parents=True)
        (place / "node" / f"node{node}" / "cpulist").write_text(f"{text}\n")
    return place / "cpu", place / "node"


def test_threads_of_two_sockets(tmp_path: Path) -> None:
    siblings = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}
    cpus, nodes = sysfs(tmp_path, siblings, {0: "0-1,4-5", 1: "2-3,6-7"})
    found = tuple(threads_of({0, 4, 3, 7}, cpus, nodes))
    assert found == (Thread(0, 0, 0), Thread(1, 3, 3), Thread(0, 0, 4), Thread(1, 3, 7))


def test_a_core_keeps_its_number_without_its_first_thread(tmp_path: Path) -> None:
    cpus, nodes = sysfs(tmp_path, {4: "0,4", 5: "1-1,5"}, {0: "0-7"})
    assert tuple(threads_of({4, 5}, cpus, nodes)) == (Thread(0, 0, 4), Thread(0, 1, 5))


def test_without_sysfs_each_thread_is_a_core(tmp_path: Path) -> None:
    assert tuple(threads_of({1, 0}, tmp_path, tmp_path)) == (Thread(0, 0, 0), Thread(0, 1, 1))


def test_what_cannot_be_read_is_a_core_of_its_own(tmp_path: Path) -> None:
    cpus, nodes = sysfs(tmp_path, {0: "a-b", 1: ""}, {0: ""})
    assert tuple(threads_of({0, 1}, cpus, nodes)) == (Thread(0, 0, 0), Thread(0, 1, 1))
