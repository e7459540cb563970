"""The report: its template with the document of a run in it, as data."""

import json
import re

from dflash_deploy.operations.bench import PLACEHOLDER, page
from tests.support.measured import document, talked
from tests.support.schemas import data_problems


def test_the_made_up_runs_are_ones_that_bench_can_print() -> None:
    assert data_problems("bench", document()) == []
    assert data_problems("bench", talked()) == []


def test_the_document_is_in_the_page_and_cannot_end_its_script() -> None:
    data = document()
    data["measured"]["model"] = "</script><script>alert(1)</script>"
    whole = {"schema": 1, "command": "bench", "data": data}
    text = page(json.dumps(whole))
    assert PLACEHOLDER not in text
    assert "alert(1)</script>" not in text
    (kept,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    assert json.loads(kept) == json.loads(json.dumps(whole))


def test_nothing_is_fetched() -> None:
    text = page("{}")
    assert "default-src 'none'" in text
    assert re.findall(r"https?://[^\s\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert re.findall(r'(?:href|src)="([^"]*)"', text) == ["data:,"]
