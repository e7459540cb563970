"""32 clients while the engine is started anew: each answer is whole or fails in a way that can be told, none hangs."""

from collections import Counter

import pytest

from dflash_deploy.assets import asset
from tests.support.cli import dflash, edit_env
from tests.support.server import Server
from tests.support.streams import WHOLE, Crowd

pytestmark = pytest.mark.restarts

CLIENTS = 32


def ended_during(server: Server, *command: str) -> Counter[str]:
    """How the last answer of each client ended, while a command started the engine anew."""
    with server.connect() as endpoint, Crowd(endpoint, server.key, CLIENTS) as clients:
        ran = dflash(*command, at=server.directory).succeeded()
        # the command waited for the engine, so that all of them have met its end
        ended = clients.ended(within=60)
        answer = endpoint.chat("What is the capital of France?", max_tokens=8)
    print(f"{' '.join(command)}: {ran.seconds:.0f} s, {clients.whole} whole answers, then {dict(ended)}")
    assert answer.completion_tokens
    return ended


def test_changed_settings_come_into_force_under_load(server: Server) -> None:
    server.serve(drafting=False).close()
    edit_env(server.directory, DFLASH_DRAFTER=str(asset("models/tiny/drafter")))
    assert WHOLE not in ended_during(server, "up")
    with server.connect() as endpoint:
        assert endpoint.counters().drafts > 0


def test_a_restart_under_load(drafting: Server) -> None:
    assert WHOLE not in ended_during(drafting, "restart")
