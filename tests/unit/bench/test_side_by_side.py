"""What `bench` prints below its table: a column for each way to make drafts, and workloads with few accepted drafts."""

from dataclasses import replace

from dflash_deploy.cli.bench import side_by_side, weak_workloads
from dflash_deploy.cli.shown import Grid
from tests.support.measured import rows


def test_each_way_to_make_drafts_has_a_column() -> None:
    made = [row for row in rows() if row.workload == "code"]
    drafted = [row for row in made if row.speculation == "dflash"]
    heads = [replace(row, speculation="mtp", tokens_per_s=50.0, speedup=0.5) for row in drafted[:2]]
    table = side_by_side([*drafted, *heads, *(row for row in made if row.speculation == "off")])
    assert isinstance(table, Grid)
    assert table.columns == ("workload", "concurrency", "no drafts", "MTP head", "DFlash")
    assert [row[1] for row in table.rows] == ["1", "4", "8"]
    assert [row[3] for row in table.rows] == ["50.0 (0.50x)", "50.0 (0.50x)", "-"]
    plain = next(row for row in made if row.speculation == "off")
    first = drafted[0]
    assert table.rows[0][2] == f"{plain.tokens_per_s:.1f}"
    assert table.rows[0][4] == f"{first.tokens_per_s:.1f} ({first.speedup:.2f}x)"


def test_workloads_with_few_accepted_drafts_get_a_hint() -> None:
    drafted = [replace(row, acceptance_length=3.0) for row in rows() if row.speculation == "dflash"]
    assert not list(weak_workloads(drafted))
    weak = [replace(drafted[0], workload="chat", acceptance_length=1.9, concurrency=one) for one in (1, 4)]
    listed, hint = weak_workloads([*drafted, *weak, replace(weak[0], workload="off", speculation="off")])
    assert listed == "acceptance length below 2: chat"
    assert "chat template" in hint
    assert "/v1/completions" in hint
