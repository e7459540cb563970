"""The block of `vllm bench serve`."""

from dflash_deploy.bench.figures import block
from tests.support.measured import rows


def said(text: str) -> dict[str, str]:
    parts = (line.partition(":") for line in text.splitlines())
    return {label.strip(): value.strip() for label, found, value in parts if found}


def test_the_figures_of_a_row() -> None:
    drafted, plain = rows()[0], rows()[-1]
    lines = said(block(drafted))
    assert lines["Successful requests"] == "12"
    assert lines["Failed requests"] == "0"
    assert lines["Total generated tokens"] == "840"
    assert lines["Output token throughput (tok/s)"] == f"{840 / drafted.duration_s:.2f}"
    assert drafted.tpot_ms is not None
    assert lines["Mean TPOT (ms)"] == f"{drafted.tpot_ms.mean:.2f}"
    assert lines["P99 TPOT (ms)"] == f"{drafted.tpot_ms.p99:.2f}"
    assert lines["Acceptance length"] == "5.90"
    assert lines["Acceptance rate (%)"] == "70.00"
    assert lines["Position 6"] == "40.00"
    assert "Acceptance length" not in said(block(plain))
    assert {len(line) for line in block(drafted).splitlines() if line[0] in "=-"} == {50}
