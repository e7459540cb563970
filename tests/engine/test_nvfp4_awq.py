"""A checkpoint in ModelOpt's NVFP4_AWQ, in the real vLLM: refused by itself, loaded and right with the loader."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash_deploy.assets import asset
from dflash_deploy.bench.workload import Prompt
from dflash_deploy.serve.engines.installed import CPU_SITE
from tests.support.nvfp4 import quantise_checkpoint
from tests.support.nvfp4_layers import CASES
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]

EXACT = 1e-6  # most that a layer in float32 may differ from float64, relatively

# Fused layers, and how many multiplications each may be folded into without becoming wrong.
LOADED = {
    "qkv_of_different_scales": 3,
    "gate_and_up_of_different_scales": 2,
    "gate_and_up_of_one_scale": 1,
    "gate_and_up_of_one_scale_and_two_peaks": 2,
    "gate_and_up_without_scales": 1,
    "one_tensor_for_three_parts": 2,
}

REFUSED = {
    "nan_in_a_scale": "BadTensor: model.language_model.layers.0.mlp.up_proj.weight_scale holds NaN",
    "infinite_scale_of_the_activation": (
        "BadTensor: model.language_model.layers.0.self_attn.k_proj.pre_quant_scale holds NaN or infinity"
    ),
    "wrong_shape": (
        "BadTensor: model.language_model.layers.0.self_attn.v_proj.weight_scale has shape (64, 4) and dtype "
        "float8_e4m3fn; NVFP4_AWQ wants (64, 8) and float8_e4m3fn"
    ),
    "wrong_type": (
        "BadTensor: model.language_model.layers.0.mlp.gate_proj.weight has shape (96, 128) and dtype bfloat16; "
        "NVFP4_AWQ wants (96, 64) and uint8"
    ),
    "missing_tensor": "BadTensor: model.language_model.layers.0.self_attn.k_proj.weight_scale_2 is missing",
    "excluded_by_half": (
        "ValueError: language_model.model.layers.5.linear_attn.in_proj_ba: "
        "language_model.model.layers.5.linear_attn.in_proj_a excluded from NVFP4_AWQ without the rest of the layer"
    ),
}


def started(module: str, *arguments: str, plugins: str | None = None) -> subprocess.Popen[str]:
    """One of the scripts beside the real vLLM, which finds the loader by the image's metadata or the package's own."""
    paths = [CPU_SITE, ROOT, asset("images/vllm")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment |= {"VLLM_NO_USAGE_STATS": "1"} | ({} if plugins is None else {"VLLM_PLUGINS": plugins})
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.support.{module}", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def output(process: subprocess.Popen[str]) -> str:
    """The last line that a script printed; it must have ended well."""
    out, err = process.communicate(timeout=1800)
    assert process.returncode == 0, (out + err)[-4000:]
    return out.strip().rpartition("\n")[2]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantise_checkpoint(tmp_path_factory.mktemp("nvfp4") / "hf_quant_config")


@pytest.fixture(scope="module")
def other_spelling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantise_checkpoint(tmp_path_factory.mktemp("nvfp4") / "config", spelling="config")


@pytest.fixture(scope="module")
def layers() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output(started("nvfp4_layers", *CASES)))
    return found


def test_logits_are_those_of_the_dequantised_weights(checkpoint: Path, prompts: list[Prompt], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    chosen = [prompt for prompt in prompts if prompt.kind == "chat"][:16]
    tokens = [
        tokenizer.apply_chat_template(prompt.body("")["messages"], add_generation_prompt=True, return_dict=False)
        for prompt in chosen
    ]
    asked = tmp_path / "tokens.json"
    asked.write_text(json.dumps(tokens))
    output(started("nvfp4_engine", "logits", str(checkpoint), str(asked), str(tmp_path / "engine.json")))
    output(started("nvfp4_reference", str(checkpoint), str(asked), str(tmp_path / "reference.json")))
    made, wanted = (json.loads((tmp_path / name).read_text()) for name in ("engine.json", "reference.json"))
    got, reference = (torch.tensor([row for rows in found for row in rows]) for found in (made, wanted))
    assert got.shape == reference.shape == (sum(map(len, tokens)), 1024)
    # a log-probability is a logit less a number that all of a position share
    got, reference = (logits - logits.mean(dim=-1, keepdim=True) for logits in (got, reference))
    by_position = (got - reference).norm(dim=-1) / reference.norm(dim=-1)
    error = float((got - reference).norm() / reference.norm())
    print(
        f"relative error of {got.numel()} logits: {error:.4f}; of one position at most {float(by_position.max()):.4f}"
    )
    assert error < 1e-2
    assert float(by_position.max()) < 4e-2


def test_without_the_loader_vllm_refuses_it(checkpoint: Path, other_spelling: Path) -> None:
    line = output(started("nvfp4_engine", "config", str(checkpoint), str(other_spelling), plugins=""))
    (first, said), (second, also_said) = json.loads(line)
    assert (first, second) == ("refused", "refused")
    assert "Unknown ModelOpt quant algo: NVFP4_AWQ" in said
    assert "ModelOpt currently only supports" in also_said


def test_both_spellings_are_taken_and_other_checkpoints_left_alone(checkpoint: Path, other_spelling: Path) -> None:
    plain = asset("models/tiny/target")
    line = output(started("nvfp4_engine", "config", str(checkpoint), str(other_spelling), str(plain)))
    assert json.loads(line) == [["modelopt_fp4", "Nvfp4AwqConfig"]] * 2 + [[None, "NoneType"]]


@pytest.mark.parametrize(("case", "multiplications"), LOADED.items())
def test_fused_layers_are_right(layers: dict[str, Any], case: str, multiplications: int) -> None:
    error, made = layers[case]
    assert error < EXACT
    assert made == multiplications


def test_a_bias_is_added_once(layers: dict[str, Any]) -> None:
    assert layers["with_a_bias"][0] < EXACT


def test_a_layer_in_parts_is_still_one_graph(layers: dict[str, Any]) -> None:
    assert layers["traced_in_one_piece"] == [0.0]


def test_one_scale_for_parts_that_differ_would_be_noticed(layers: dict[str, Any]) -> None:
    assert layers["folded_wrongly"][0] > 0.1


@pytest.mark.parametrize(("case", "message"), REFUSED.items())
def test_bad_tensors_are_refused_by_name(layers: dict[str, Any], case: str, message: str) -> None:
    assert layers[case].startswith(message)


def test_excluded_modules_are_left_alone(layers: dict[str, Any]) -> None:
    assert layers["excluded_layers"] == [0.0, 0.0, 1.0]


def test_two_ranks_share_the_channels_and_their_scales() -> None:
    port = str(free_port())
    ranks = [started("nvfp4_layers", rank, port) for rank in ("0", "1")]
    for rank in ranks:
        error, scales = json.loads(output(rank))["shared_by_two"]
        assert error < EXACT
        assert scales == 64
