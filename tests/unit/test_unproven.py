"""The page of what is not proven names every engine, tests that exist, and commands that this program has."""

import json
from pathlib import Path

import pytest

from benchmarks.speed_model import shared_points
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.errors import FileRefused
from dflash_deploy.host.gpu import FIELDS, gpus_of, parse
from dflash_deploy.intake.documents import parse_document
from dflash_deploy.intake.parse import Invalid
from tests.support.recorded import recorded
from tools.proof.share import LARGEST_SHARED, SharedResult, SharedStep, machine_of, share, shared_rows
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
    row = measured(workload="humaneval", tokens_per_s=412.0, acceptance_length=8.0)
    named = {"profile": "b200", "model": "qwen3.5-27b-bf16", "engine": "vllm-0.33", "runtime": "native"}
    run = share("bench", load_catalog(), machine_of((), 2), named=named, rows=[row])
    (line,) = [line for line in results.page(load_catalog(), {"x": run}).splitlines() if "humaneval" in line]
    assert line.startswith("|  | humaneval | 1 | 15 | 412.0 | 4.90 | 8.00 | ")
    planned, published = line.strip("| ").split(" | ")[-2:]
    assert all(" to " in cell for cell in (planned, published))
    assert "427" in published


def measured(**changes: object) -> dict[str, object]:
    """A row of `bench --json`, as on an H100 with the target in FP8 and 15 draft tokens."""
    row = {"workload": "code", "concurrency": 1, "drafter": True, "mtp": False, "draft_tokens": 15, "requests": 32}
    row |= {"tokens_per_s": 247.0, "speedup": 4.9, "failed": 0, "acceptance_length": 6.75}
    return row | {"ttft_ms": None, "tpot_ms": None} | changes


def test_a_proof_on_a_gpu_fits_the_speed_model_and_shows_the_error_of_the_memory_model() -> None:
    plain = measured(drafter=False, draft_tokens=0, acceptance_length=None, tokens_per_s=71.0)
    left_out = [measured(failed=1), measured(acceptance_length=None)]
    figures = {"cache-tokens": 300000.0, "planned-cache-tokens": 362116.0, "planned-dflash-1-low": 63.0}
    shape = SharedStep(
        name="shape-fp8", state="passed", seconds=1, model="qwen3.5-27b-fp8", figures=figures,
        rows=shared_rows([measured(), plain, measured(mtp=True), *left_out]),
    )  # fmt: skip
    tiny = shape.model_copy(update={"name": "tiny", "model": "tiny"})
    run = proof("native").model_copy(update={"steps": [shape, tiny]})
    points = list(shared_points({"ours": run}))
    assert [(one.drafts, one.speed) for one in points] == [("dflash", 247), (None, 71), ("mtp", 247)]
    assert {point.source for point in points} == {"docs/results/ours.json"}
    assert list(shared_points({"cpu": run.model_copy(update={"machine": machine_of((), 2)})})) == []
    assert "| shape-fp8 | passed | 1 | cache-tokens 300000 (plan: 362116, +21 %) |" in results.page(
        load_catalog(), {"ours": run}
    )


@pytest.mark.parametrize("name", ["x](http://evil.example)|.json", "a b.json", "<b>.json", "X.json", "x.md", ".json"])
def test_a_shared_file_whose_name_is_not_simple_is_refused(tmp_path: Path, name: str) -> None:
    """Its name becomes a heading and a link of the pages."""
    place = tmp_path / name.replace("/", "_")
    place.write_text(proof("native").text())
    with pytest.raises(Invalid):
        results.read(tmp_path)


@pytest.mark.parametrize("text", ["a|b", "[x](http://evil.example)", "<script>x</script>", "`x`", "x\n# y", "x" * 99])
def test_a_shared_file_puts_no_markdown_into_the_page(text: str) -> None:
    good = json.loads(proof("native").text())
    good["versions"], good["settings"] = {"torch": "2.11.0"}, {"MAX_NUM_SEQS": "4"}
    parse_document(json.dumps(good), SharedResult)
    texts = ("version", "date", "profile", "model", "engine", "runtime", "image", "command", "made_by")
    hostile = [good | {name: text} for name in texts]
    hostile += [good | {name: {text: "1"}} for name in ("versions", "weights")]
    hostile += [good | {name: {"torch": text}} for name in ("versions", "settings")]
    machines = ({"gpus": [f"NVIDIA {text}"]}, {"driver": text}, {"compute_capability": text})
    hostile += [good | {"machine": good["machine"] | one} for one in machines]
    row = shared_rows([measured()])[0].model_dump(exclude_none=True) | {"workload": text}
    for change in ({"name": text}, {"state": text}, {"model": text}, {"figures": {text: 1}}, {"rows": [row]}):
        hostile.append(good | {"steps": [good["steps"][0] | change]})
    for document in hostile:
        with pytest.raises(Invalid):
            parse_document(json.dumps(document), SharedResult)


def test_a_shared_file_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "large.json").write_text(" " * (LARGEST_SHARED + 1))
    with pytest.raises(FileRefused):
        results.read(tmp_path)
