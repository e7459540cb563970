"""Several engines share cores: threads of a core together, one NUMA node for each where that is possible."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.host.gpu import Thread
from dflash_deploy.plan.memory import shares_of_cores


def machine(nodes: int, cores: int, threads: int = 2) -> tuple[Thread, ...]:
    """Numbered as Linux numbers two sockets of Intel or AMD: first one thread of all cores, then the others."""
    every = nodes * cores
    return tuple(
        Thread(core // cores, core, core + every * thread) for thread in range(threads) for core in range(every)
    )


@pytest.mark.parametrize(
    ("threads", "engines", "shares"),
    [
        (machine(1, 4), 2, ((0, 1, 4, 5), (2, 3, 6, 7))),
        (machine(1, 4, threads=1), 2, ((0, 1), (2, 3))),
        (machine(2, 2), 2, ((0, 1, 4, 5), (2, 3, 6, 7))),
        # one engine for each node, and one more
        (machine(2, 4, threads=1), 3, ((0, 1), (2, 3), (4, 5, 6, 7))),
        # nodes are not divided
        (machine(3, 2, threads=1), 2, ((0, 1), (2, 3, 4, 5))),
        # fewer cores than engines: threads
        (machine(1, 2), 3, ((0,), (2,), (1, 3))),
        (machine(1, 2), 4, ((0,), (2,), (1,), (3,))),
        (machine(1, 2), 5, ()),
        ((), 2, ()),
    ],
)
def test_shares(threads: tuple[Thread, ...], engines: int, shares: tuple[tuple[int, ...], ...]) -> None:
    assert shares_of_cores(threads, engines) == shares


def test_nodes_of_different_size_have_engines_by_their_cores() -> None:
    threads = (
        *(Thread(0, number, number) for number in range(2)),
        *(Thread(1, number, number) for number in range(2, 8)),
    )
    assert [len(share) for share in shares_of_cores(threads, 4)] == [2, 2, 2, 2]


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 2), st.integers(1, 70))
def test_each_thread_belongs_to_one_engine(nodes: int, cores: int, threads: int, engines: int) -> None:
    every = machine(nodes, cores, threads)
    shares = shares_of_cores(every, engines)
    if engines > len(every):
        assert not shares
        return
    assert sorted(chain.from_iterable(shares)) == sorted(thread.number for thread in every)
    assert len(shares) == engines
    assert all(shares)
    by_number = {thread.number: thread for thread in every}
    if engines >= nodes:
        assert all(len({by_number[number].node for number in share}) == 1 for share in shares)
    if engines <= nodes * cores:
        owners = {(by_number[number].core, place) for place, share in enumerate(shares) for number in share}
        assert len(owners) == nodes * cores
