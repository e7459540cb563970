"""The loader of NVFP4_AWQ as far as it needs no vLLM: metadata, names, forms, and how vLLM finds it."""

import logging
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from dflash_deploy.assets import asset, build_context
from dflash_deploy.serve.engines.installed import InstalledEngine
from dflash_deploy.serve.engines.vllm import NVFP4_PLUGIN, PLUGINS
from dflash_deploy.serve.nvfp4 import plugin
from dflash_deploy.serve.nvfp4.metadata import as_nvfp4, states_awq
from dflash_deploy.serve.nvfp4.tensors import (
    BadTensor,
    Shard,
    check_form,
    module_name,
    original_prefix,
    parts_of,
    runs,
)

ROOT = Path(__file__).parents[3]
LEGACY = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4_AWQ", "exclude_modules": ["lm_head"]}}
MODERN = {"quant_method": "modelopt", "quant_algo": "nvfp4_awq", "exclude_modules": ["lm_head"]}


def test_both_spellings_are_recognised_and_no_other_algorithm() -> None:
    assert states_awq(LEGACY)
    assert states_awq(MODERN)
    for other in (None, {}, {"quantization": None}, {"quant_method": "fp8"}, {"quantization": {"quant_algo": "NVFP4"}}):
        assert not states_awq(other)


def test_vllms_reader_gets_all_that_it_asks_for() -> None:
    assert as_nvfp4(LEGACY) == {
        "producer": {"name": "modelopt"},
        "quantization": {
            "quant_algo": "NVFP4",
            "exclude_modules": ["lm_head"],
            "group_size": 16,
            "kv_cache_quant_algo": None,
        },
    }
    modern = as_nvfp4(MODERN)
    assert (modern["quant_algo"], modern["ignore"], modern["group_size"]) == ("NVFP4", ["lm_head"], 16)


def test_what_the_checkpoint_says_is_kept() -> None:
    stated = {"quant_algo": "NVFP4_AWQ", "kv_cache_quant_algo": "FP8", "group_size": "16"}
    kept = as_nvfp4({"quantization": stated})["quantization"]
    assert kept == {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": "16", "exclude_modules": []}


@pytest.mark.parametrize("config", [LEGACY | {"quantization": {"group_size": 128}}, MODERN | {"group_size": 32}])
def test_another_group_size_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="groups of 16 columns, and the checkpoint says group_size"):
        as_nvfp4(config)


@pytest.mark.parametrize(
    ("layer", "parts", "shard", "count", "expected"),
    [
        ("a.qkv_proj", ["q_proj", "k_proj", "v_proj"], "k", 3, "a.k_proj"),
        ("a.gate_up_proj", ["gate_proj", "up_proj"], 1, 2, "a.up_proj"),
        ("a.in_proj_qkvz", ["in_proj_qkv", "in_proj_z"], (0, 1, 2), 4, "a.in_proj_qkv"),
        ("a.in_proj_qkvz", ["in_proj_qkv", "in_proj_z"], 3, 4, "a.in_proj_z"),
        ("a.in_proj_qkvz", ["in_proj_qkv", "in_proj_z"], 1, 4, "a.in_proj_qkvz"),
        ("a.gate_up_proj", ["gate_proj", "up_proj"], None, 2, "a.gate_up_proj"),
        ("a.o_proj", [], None, 1, "a.o_proj"),
    ],
)
def test_a_part_is_called_as_in_the_checkpoint(
    layer: str, parts: list[str], shard: Shard, count: int, expected: str
) -> None:
    assert module_name(layer, parts, shard, count) == expected


def test_names_lead_back_to_the_checkpoint() -> None:
    renamed = {"model.visual.": "visual.", "model.language_model.": "language_model.model.", "mtp.": None}
    assert original_prefix("language_model.model.layers.3.x", renamed) == "model.language_model.layers.3.x"
    assert original_prefix("other.layers.3.x", renamed) == "other.layers.3.x"


def test_parts_and_runs() -> None:
    assert [parts_of(shard, 4) for shard in ("q", "v", 3, (0, 1), None)] == [(0,), (2,), (3,), (0, 1), (0, 1, 2, 3)]
    assert runs("aab") == [range(2), range(2, 3)]
    assert runs("aba") == [range(1), range(1, 2), range(2, 3)]
    assert runs("aaa") == [range(3)]


@pytest.mark.parametrize(
    ("tensor", "shape", "dtype"),
    [
        ("weight", (96, 64), "uint8"),
        ("weight_scale", (96, 8), "float8_e4m3fn"),
        ("weight_scale_2", (), "float32"),
        ("input_scale", (1,), "float32"),
        ("pre_quant_scale", (128,), "bfloat16"),
    ],
)
def test_the_forms_of_a_layer_of_96_by_128(tensor: str, shape: tuple[int, ...], dtype: str) -> None:
    check_form(f"m.{tensor}", shape, dtype, rows=96, columns=128)
    with pytest.raises(BadTensor, match=rf"^m\.{tensor} has shape \(7, 7\) and dtype {dtype}; NVFP4_AWQ wants \("):
        check_form(f"m.{tensor}", (7, 7), dtype, rows=96, columns=128)
    with pytest.raises(BadTensor, match=f"and dtype int64; NVFP4_AWQ wants .* and {dtype}; download"):
        check_form(f"m.{tensor}", shape, "int64", rows=96, columns=128)


def test_an_output_head_may_have_any_number_of_rows() -> None:
    check_form("lm_head.weight", (7, 64), "uint8", rows=None, columns=128)
    with pytest.raises(BadTensor, match=r"wants \(any, 64\)"):
        check_form("lm_head.weight", (7, 65), "uint8", rows=None, columns=128)


def test_the_image_offers_vllm_what_the_package_does() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (image,) = metadata.distributions(path=[str(asset("images/vllm"))])
    offered = {entry.name: entry.value for entry in image.entry_points.select(group=PLUGINS)}
    assert offered == declared["entry-points"][PLUGINS]
    assert set(offered) == {NVFP4_PLUGIN}
    assert image.entry_points[NVFP4_PLUGIN].load() is plugin.register
    assert image.version == declared["version"]


@pytest.mark.parametrize("image", ["vllm", "sglang", "llamacpp", "llamacpp-buun", "door"])
def test_what_a_dockerfile_copies_is_in_its_build_context(image: str) -> None:
    context = build_context(image)
    copied = re.findall(r"^COPY (?!--from)(\S+) ", asset(f"images/{image}/Dockerfile").read_text(), re.MULTILINE)
    assert copied
    for source in copied:
        assert any(name == source or name.startswith(f"{source}/") for name in context)


@pytest.mark.parametrize("version", ["0.25.1", "0.34.0", "unknown"])
def test_an_unknown_release_is_left_alone_with_one_line(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "installed_vllm", lambda: InstalledEngine("vllm", version, cpu=False))
    with caplog.at_level(logging.INFO, logger="vllm.dflash"):
        plugin.register()
    (line,) = caplog.messages
    assert "is not loaded in this one" in line
    assert version in line
