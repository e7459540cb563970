"""What `bench` prints of workloads with few accepted drafts."""

from dataclasses import replace

from dflash_deploy.cli.bench import weak_workloads
from tests.support.measured import rows


def test_workloads_with_few_accepted_drafts_get_a_hint() -> None:
    drafted = [replace(row, acceptance_length=3.0) for row in rows() if row.speculation == "dflash"]
    assert not list(weak_workloads(drafted))
    weak = [replace(drafted[0], workload="chat", acceptance_length=1.9, concurrency=one) for one in (1, 4)]
    listed, hint = weak_workloads([*drafted, *weak, replace(weak[0], workload="off", speculation="off")])
    assert listed == "acceptance length below 2: chat"
    assert "chat template" in hint
    assert "/v1/completions" in hint
