"""Data sets by name. Tests cannot reach the hub: its viewer's answers have the shape that its manual shows."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dflash_deploy.bench.workload import DATASETS, ROWS, fetch_questions
from dflash_deploy.errors import HubUnreachable
from tests.support.ports import free_port

ASKS = dict.fromkeys(("question", "problem", "prompt"), "How many?")


@contextmanager
def viewer(status: int, body: object) -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """A viewer that always answers so, and what it was asked."""
    asked: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            pass

        def do_GET(self) -> None:
            asked.append(parse_qs(urlsplit(self.path).query))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()


@pytest.mark.parametrize("name", DATASETS)
def test_a_data_set_is_asked_for_once_and_its_question_is_in_the_prompt(name: str) -> None:
    rows = [{"row_idx": 0, "row": ASKS, "truncated_cells": []}]
    with viewer(200, {"features": [], "rows": rows, "num_rows_total": 1}) as (address, asked):
        (prompt,) = fetch_questions(name, viewer=address)
    assert "How many?" in prompt
    assert [query["dataset"] for query in asked] == [[DATASETS[name].repo]]
    assert asked[0]["length"] == [str(ROWS)]


def test_of_a_conversation_the_first_turn_is_taken() -> None:
    rows = [{"row_idx": 0, "row": {"prompt": ["First?", "Second?"]}}]
    with viewer(200, {"rows": rows}) as (address, _):
        assert fetch_questions("mt-bench", viewer=address) == ["First?"]


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, {"rows": []}, "no rows"),
        (200, {"rows": [{"row": {"other": 1}}]}, "unexpected answer"),
        (200, ["x"], "unexpected answer"),
        (503, {"error": "busy"}, "503"),
    ],
)
def test_what_is_no_data_set_is_told(status: int, body: object, says: str) -> None:
    with viewer(status, body) as (address, _), pytest.raises(HubUnreachable, match=says):
        fetch_questions("gsm8k", viewer=address)


def test_without_a_network_the_hint_names_a_way_on() -> None:
    with pytest.raises(HubUnreachable) as unreachable:
        fetch_questions("gsm8k", viewer=f"http://127.0.0.1:{free_port()}")
    assert "--prompts" in unreachable.value.hint
