"""`capacity`: from the speed model, from figures of `bench`, and what it refuses."""

import json
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from dflash_deploy.features.capacity.load_text import EXAMPLE
from tests.support.bench_figures import figures, keep
from tests.support.cli import Ran, edit_env, initialise, invoke

H100 = "users=20,think=10s,in=500,out=200,p95_ttft=1s"
TINY = "users=20,think=2s,in=60,out=150,p95_ttft=500ms,spread=0"


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    initialise("--profile", "cpu", "--engine", "llamacpp", "--runtime", "native", at=tmp_path)
    # as in the figures
    edit_env(tmp_path, MAX_NUM_SEQS="4")
    return tmp_path


def planned(at: Path, load: str, *options: str) -> Ran:
    return invoke("capacity", load, "--dir", str(at), *options)


def refused(ran: Ran, *says: str) -> None:
    assert ran.code is ExitCode.USAGE, ran.out + ran.err
    assert "  hint: " in ran.err
    for text in says:
        assert text in ran.err


def test_without_a_measurement_the_speed_model_answers_and_says_so(tmp_path: Path) -> None:
    ran = planned(tmp_path, H100, "--profile", "h100", "--json").succeeded()
    load = ran.document["data"]
    assert load["basis"] == "speed model"
    assert "not measured" in load["source"]
    for side in ("with_drafts", "without_drafts"):
        assert load[side]["replicas"] * load[side]["users_of_one"] >= 20
        assert load[side]["one"]["ttft_p95_s"] <= 1.0


def test_the_example_fits_the_context_of_the_smallest_profile(deployment: Path) -> None:
    # beyond the check of its length
    refused(planned(deployment, EXAMPLE), "nothing is known of the speed here")
    assert EXAMPLE in (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text()


def test_the_last_bench_of_the_deployment_answers(deployment: Path) -> None:
    keep(deployment, figures())
    load = planned(deployment, TINY, "--json").succeeded().document["data"]
    assert load["basis"] == "bench"
    assert load["source"] == "bench of 2026-11-22 20:00 UTC (own; concurrency 1, 4)"
    assert load["with_drafts"]["replicas"] <= load["without_drafts"]["replicas"]
    # 2 ms at one and 6 ms at four sequences with drafts, 5 and 5.5 ms without: equal above three
    assert load["drafts_pay_below"] == 4


def test_people_read_the_replicas_and_where_drafts_stop_paying(deployment: Path) -> None:
    keep(deployment, figures())
    shown = planned(deployment, TINY).succeeded().out
    assert "load     20 users, 2 s between an answer and the next request; 60 tokens in, 150 out on average" in shown
    assert "goal     p95 of TTFT at most 0.5 s" in shown
    assert "drafts   stop paying at 4 sequences at the same time on one replica" in shown


def test_figures_of_a_file_answer_too(deployment: Path, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps(figures(drafters=(True,), settings={"MAX_NUM_SEQS": "4", "KV_CACHE_DTYPE": "fp8"})))
    load = planned(deployment, TINY, "--figures", str(file), "--json").succeeded().document["data"]
    assert load["without_drafts"] is None
    assert load["drafts_pay_below"] is None
    assert "measured with other settings: KV_CACHE_DTYPE=fp8" in load["notes"]
    assert "without drafts nothing was measured: `bench --baseline` measures both" in load["notes"]


def test_another_endpoint_without_drafts_is_not_this_one_without_drafts(deployment: Path) -> None:
    keep(deployment, figures(baseline_url="http://box:8001"))
    load = planned(deployment, TINY, "--json").succeeded().document["data"]
    assert (load["basis"], load["without_drafts"], load["drafts_pay_below"]) == ("bench", None, None)
    assert "without drafts nothing was measured: `bench --baseline` measures both" in load["notes"]


def test_long_prompts_and_many_users_are_named_as_extrapolated(deployment: Path) -> None:
    keep(deployment, figures())
    load = planned(deployment, "users=20,think=60s,in=600,out=20,p95_ttft=60s", "--json").succeeded()
    notes = " ".join(load.document["data"]["notes"])
    assert "the measured prompts have up to 60 tokens: the time of 600 is extrapolated" in notes


def test_a_goal_that_a_single_user_misses(deployment: Path) -> None:
    keep(deployment, figures())
    ran = planned(deployment, "users=20,in=60,out=150,p95_ttft=1ms")
    assert "no number of replicas meets the goal" in ran.succeeded().out


@pytest.mark.parametrize(
    "document",
    [figures(pair="qwen3.5-27b-fp8"), figures(profile="h100"), {"command": "bench"}, [], figures(drafters=())],
    ids=["another pair", "another profile", "no data", "a list", "no rows"],
)
def test_where_nothing_is_known_of_the_speed_it_says_how_to_measure_it(deployment: Path, document: object) -> None:
    keep(deployment, document)
    refused(planned(deployment, TINY), "nothing is known of the speed here", "dflash-deploy bench --baseline")


def test_what_is_refused(deployment: Path, tmp_path: Path) -> None:
    keep(deployment, figures())
    refused(planned(deployment, "users=20"), "the load has no `in`")
    refused(
        planned(deployment, "users=20,in=9000,out=9,p95_ttft=1s"), "more than MAX_MODEL_LEN=", "--max-model-len 9009"
    )
    other = tmp_path / "other.json"
    other.write_text(json.dumps(figures(pair="qwen3.5-27b-fp8")))
    refused(
        planned(deployment, TINY, "--figures", str(other)), "figures of qwen3.5-27b-fp8", "the plan is for tiny-gguf"
    )
    other.write_text("{")
    refused(planned(deployment, TINY, "--figures", str(other)), "other.json is damaged")
    refused(planned(deployment, TINY, "--figures", str(tmp_path / "none.json")), "none.json")
