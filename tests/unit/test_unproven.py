"""The page of what is not proven names every engine, tests that exist, and commands that this program has."""

import pytest

from dflash_deploy.bench.share import SharedResult, SharedStep, machine_of, share
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.host.gpu import FIELDS, gpus_of, parse
from tests.support.recorded import recorded
from tools.readme import ROOT
from tools.reference import FOLDER, results
from tools.reference.unproven import PROVED_BY, PROVEN, UNPROVEN, page

TEXT = (FOLDER / "unproven.md").read_text(encoding="utf-8")


def test_it_speaks_of_every_engine_of_the_catalog() -> None:
    assert set(PROVEN) == set(UNPROVEN) == set(load_catalog().engines)


@pytest.mark.parametrize("test", sorted({test for proofs in PROVEN.values() for _, test in proofs}))
def test_each_proof_is_a_test_that_exists(test: str) -> None:
    assert (ROOT / test).is_file()


def test_each_profile_has_a_model_for_each_of_its_engines() -> None:
    for profile in load_catalog().profiles.values():
        (line,) = (line for line in TEXT.splitlines() if line.startswith(f"- `{profile.name}`: "))
        assert [choice.release for choice in profile.engines if f"`{choice.release}`" not in line] == []


def test_it_claims_no_run_on_a_gpu_that_the_catalog_does_not_have() -> None:
    engines = load_catalog().engines.values()
    on_a_gpu = [engine.name for engine in engines if engine.evidence.state == "verified" and not engine.cpu]
    assert on_a_gpu == [], "change the page's first words"
    assert "This project has no GPU." in TEXT


def proof(runtime: str, *failed: str) -> SharedResult:
    """A proof of vLLM on an H100, in which all steps passed but these."""
    names = {name for steps in PROVED_BY.values() for name in steps}
    steps = [
        SharedStep(name=name, state="failed" if name in failed else "passed", seconds=1, figures={"load-gib": 28})
        for name in sorted(names)
    ]
    gpus = machine_of(gpus_of(parse(recorded("nvidia-smi", "h100.txt"), FIELDS)), 16)
    named = {"profile": "h100", "engine": "vllm-0.33", "runtime": runtime}
    return share("proof", load_catalog(), gpus, named=named, steps=steps)


def open_rows(text: str) -> str:
    """What is not proven of vLLM."""
    return next(line for line in text.partition("What is not proven:")[2].splitlines() if "`vllm-0.33`" in line)


def test_a_proof_on_a_gpu_moves_its_rows_to_proven() -> None:
    text = page(load_catalog(), {"ours": proof("native", "nvfp4")})
    assert "- FP8 kernels, on a GPU ([ours](results.md#ours)): `vllm-0.33`" in text
    assert open_rows(text) == "- `vllm-0.33`: its image; NVFP4 kernels; several GPUs and machines"
    assert "NVIDIA H100" in text
    whole = open_rows(page(load_catalog(), {"ours": proof("compose")}))
    assert whole == "- `vllm-0.33`: several GPUs and machines"


def test_a_run_without_a_gpu_proves_nothing_about_one() -> None:
    on_cpu = proof("compose").model_copy(update={"machine": machine_of((), 2)})
    assert open_rows(page(load_catalog(), {"cpu": on_cpu})) == open_rows(page(load_catalog(), {}))


def test_a_shared_result_is_beside_published_figures_and_plan() -> None:
    row = {"workload": "humaneval", "concurrency": 1, "drafter": True, "mtp": False, "draft_tokens": 15}
    row |= {"tokens_per_s": 412.0, "speedup": 4.9, "requests": 32, "failed": 0, "acceptance_length": 8.0}
    named = {"profile": "b200", "model": "qwen3.5-27b-bf16", "engine": "vllm-0.33", "runtime": "native"}
    run = share(
        "bench", load_catalog(), machine_of((), 2), named=named, rows=[row | {"ttft_ms": None, "tpot_ms": None}]
    )
    (line,) = [line for line in results.page(load_catalog(), {"x": run}).splitlines() if "humaneval" in line]
    assert line.startswith("|  | humaneval | 1 | 15 | 412.0 | 4.90 | 8.00 | ")
    planned, published = line.strip("| ").split(" | ")[-2:]
    assert all(" to " in cell for cell in (planned, published))
    assert "427" in published
