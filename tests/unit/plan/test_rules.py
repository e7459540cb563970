"""Each rule on a plan that breaks it, and on one that does not."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.host.gpu import with_slices
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.result import Checkpoints, Choice, Finding, Severity
from dflash_deploy.rules.arguments import argument_is_unknown
from dflash_deploy.rules.table import CHECKPOINT_RULES, RULES, plan_deployment
from dflash_deploy.rules.weights import target_unknown_to_engine
from dflash_deploy.serve.settings import Settings
from tests.support.machines import DOCKER, H100, MACHINES, SPARK, machine
from tests.support.rows import each_of


@dataclass(frozen=True, eq=False)
class Case:
    """A plan that a rule must find. `edited` is what `.env` says."""

    rule: str
    severity: Severity
    profile: str
    edited: Mapping[str, str] = field(default_factory=dict)
    target: Mapping[str, object] | None = None
    drafter: Mapping[str, object] | None = None
    tokenizer: bool | None = None
    template: bool | None = None
    head: bool | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    choice: Mapping[str, Any] = field(default_factory=dict)
    facts: HostFacts | None = None

    def __str__(self) -> str:
        return f"{self.rule} on {self.profile}"


@cache
def findings(case: Case) -> Mapping[str, Finding]:
    """The findings of the case's plan."""
    facts = case.facts if case.facts is not None else MACHINES[case.profile]
    choice = Choice(profile=case.profile, **{"master_addr": master_of(case.profile), **case.choice})
    read = Checkpoints(case.target, case.drafter, case.tokenizer, case.template, case.head, **case.more)
    made = plan_deployment(facts, replace(choice, edited=case.edited), load_catalog(), read)
    return {finding.id: finding for finding in made.findings}


@cache
def usual_findings(profile: str, model: str | None, engine: str | None) -> Mapping[str, Finding]:
    """The findings of a plan without what breaks it."""
    choice = Choice(profile=profile, model=model, engine=engine, master_addr=master_of(profile))
    made = plan_deployment(MACHINES[profile], choice, load_catalog(), Checkpoints())
    return {finding.id: finding for finding in made.findings}


def master_of(profile: str) -> str | None:
    return "10.0.0.1" if profile == "dgx-spark-x2" else None


FP8 = {"model": "qwen3.5-27b-fp8"}
NVFP4 = {"model": "qwen3.6-27b-nvfp4"}
AEON = {"engine": "aeon-vllm-dflash"}
AEON = {"model": "qwen3.5-27b-uncensored-nvfp4"}
ULTIMATE = FP8 | {"engine": "aeon-ultimate-0.27"}
MODELOPT = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}}
LISTED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-950792bf-a01c-3f1a-e122-3473e67f54b2)
  MIG 7g.80gb     Device  0: (UUID: MIG-whole)
  MIG 1c.1g.10gb  Device  1: (UUID: MIG-small)
"""
SLICED = machine(*with_slices([replace(H100, mig=True)], LISTED), container_engine=DOCKER)
GGUF = {
    "general.architecture": "qwen35",
    "qwen35.embedding_length": 5120,
    "qwen35.block_count": 64,
    "tokenizer.ggml.tokens.length": 248320,
    "tokenizer.ggml.tokens.sha256": "a",
}
VISION = {"architectures": ["Qwen3_5ForConditionalGeneration"], "vision_config": {"depth": 2}}
WITH_HEAD = {"text_config": {"mtp_num_hidden_layers": 1}}
FORK = {"model": "qwen3.5-27b-gguf-buun"}
CASES = [
    Case("hardware-differs", "warning", "h100", facts=SPARK),
    Case("hardware-differs", "warning", "h100", facts=machine(replace(H100, name="NVIDIA H100 PCIe"))),
    Case("profile-computed", "note", "h100-pcie", facts=machine(replace(H100, name="NVIDIA H100 PCIe"))),
    Case("base-image-of-another-engine", "warning", "h100", {"DFLASH_BASE_IMAGE": "lmsysorg/sglang:v0.5.23"}),
    Case("streams-wait-for-memory", "warning", "h100", {"MAX_NUM_SEQS": "300", "MAX_NUM_BATCHED_TOKENS": "65536"}),
    Case("drafter-slows-down", "note", "dgx-spark", choice={"model": "qwen3-coder-30b-a3b-fp8"}),
    Case("weights-of-another-model", "error", "h100", {
        "DFLASH_PAIR": "qwen3.6-27b-fp8", "MODEL_HOST_PATH": "/data/Qwen3.5-27B-FP8"
    }),
    Case("slots-without-drafts", "warning", "rtx-3090", {"MAX_NUM_SEQS": "4"}, choice=FORK),
    Case("more-sequences-than-sound", "warning", "cpu", {"MAX_NUM_SEQS": "8"}, choice={"engine": "llamacpp"}),
    Case("answers-change", "warning", "rtx-3090", choice=FORK),
    Case("answers-change", "warning", "cpu", choice={"engine": "llamacpp-buun"}),
    Case("drafter-named-twice", "error", "h100", {"DFLASH_DRAFTER": "other/drafter", "DRAFTER_HOST_PATH": "/m/mine"}),
    Case("kv-dtype-unknown", "error", "h100", {"DFLASH_KV_CACHE_DTYPE": "banana"}),
    Case("gpus-unused", "note", "h100", facts=machine(H100, H100)),
    Case("gpu-missing", "error", "h100-x4", facts=machine(H100, replace(H100, index=1))),
    Case("gpu-missing", "error", "h100", facts=replace(machine(H100), gpu_problem="nvidia-smi fails: Lost GPU 1")),
    Case("gpu-missing", "error", "h100", facts=replace(machine(), gpu_problem="nvidia-smi fails: no GPU")),
    Case("visible-gpus", "error", "h100", {"CUDA_VISIBLE_DEVICES": "7"}),
    Case("visible-gpus", "error", "h100", {"CUDA_VISIBLE_DEVICES": "all"}),
    Case("visible-gpus", "error", "h100", {"CUDA_VISIBLE_DEVICES": "0,nvidia1"}),
    Case("visible-gpus", "error", "h100-x2", {"CUDA_VISIBLE_DEVICES": "0"}, facts=machine(
        H100, replace(H100, index=1)
    )),
    Case("visible-gpus", "error", "h100", {"CUDA_VISIBLE_DEVICES": "0"}, facts=machine(
        replace(H100, name="NVIDIA GeForce GT 1030", memory=2 * 2**30), replace(H100, index=1)
    )),
    Case("visible-gpus", "error", "h100", {"CUDA_VISIBLE_DEVICES": "0"}, facts=SLICED),
    Case("visible-gpus", "error", "h100", {"CUDA_VISIBLE_DEVICES": "MIG-gone"}, facts=SLICED),
    Case("visible-gpus", "error", "h100", {"CUDA_VISIBLE_DEVICES": "MIG-small"}, facts=SLICED),
    Case("visible-gpus", "error", "h100", {"CUDA_VISIBLE_DEVICES": "MIG-any"}),
    Case("visible-gpus", "error", "h100-x2", {"CUDA_VISIBLE_DEVICES": "MIG-whole,MIG-small"}, facts=SLICED),
    Case("driver-too-old", "error", "h100", facts=replace(MACHINES["h100"], gpus=(replace(H100, driver="550.54.15"),))),
    Case("no-image-for-processor", "error", "dgx-spark", facts=replace(SPARK, architecture="x86_64"), choice=AEON),
    Case("base-image-unseen", "note", "h100"),
    Case("draft-tokens-exceed-block", "warning", "cpu", {"DFLASH_NUM_SPEC_TOKENS": "8"}),
    Case("draft-tokens-exceed-block", "warning", "h100", drafter={"dflash_config": {"block_size": 4}}),
    Case("budget-too-small", "error", "cpu", {"MAX_NUM_BATCHED_TOKENS": "31"}),
    Case("budget-too-small", "warning", "h100", {"MAX_NUM_BATCHED_TOKENS": "100"}),
    Case("budget-leaves-little", "warning", "h100", {"MAX_NUM_BATCHED_TOKENS": "8191"}),
    Case("budget-leaves-little", "warning", "dgx-spark", {"MAX_NUM_BATCHED_TOKENS": "8200"}, choice=ULTIMATE),
    Case("budget-hangs-unified-memory", "error", "dgx-spark", {"MAX_NUM_BATCHED_TOKENS": "65536"}),
    Case("memory-overcommitted", "error", "dgx-spark", {"GPU_MEMORY_UTILIZATION": "0.95"}),
    Case("memory-overcommitted", "warning", "dgx-spark", {"GPU_MEMORY_UTILIZATION": "0.90"}),
    Case("memory-overcommitted", "warning", "h100", {"GPU_MEMORY_UTILIZATION": "0.98"}),
    Case("weights-do-not-fit", "error", "h100", {"GPU_MEMORY_UTILIZATION": "0.4"}),
    Case("sequence-does-not-fit", "warning", "rtx-3090", {Settings.max_model_len.name: "131072"}),
    Case("context-beyond-target", "error", "h100", {Settings.max_model_len.name: "1000000"}),
    Case("context-beyond-drafter", "note", "dgx-spark", choice=AEON),
    Case("target-needs-loader", "error", "dgx-spark", target=MODELOPT, choice=ULTIMATE),
    Case("loader-unproven", "note", "dgx-spark", choice={"model": AEON["model"], "engine": "vllm-0.33"}),
    Case("target-needs-loader", "error", "dgx-spark", target={"text_config": {}, **MODELOPT}, choice=ULTIMATE),
    Case("kv-dtype-unknown", "error", "h100", {"KV_CACHE_DTYPE": "q8_0"}),
    Case("kv-dtype-unknown", "error", "h100", {"DFLASH_KV_CACHE_DTYPE": "nvfp4"}, choice={"engine": "sglang"}),
    Case("backend-not-here", "error", "b200", {"ATTENTION_BACKEND": "FA3"}),
    Case("backend-refuses-target", "error", "b200", {"ATTENTION_BACKEND": "FLASH_ATTN"},
         choice={"model": "gemma-4-31b-it-fp8"}),
    Case("backend-refuses-target", "error", "rtx-3090-x4", {"ATTENTION_BACKEND": "FLASHINFER"},
         choice={"model": "gpt-oss-20b"}),
    Case("drafter-backend-is-causal", "error", "b200", {"DFLASH_ATTENTION_BACKEND": "FLASHINFER"}),
    Case("drafter-backend-is-causal", "error", "dgx-spark", {"DFLASH_ATTENTION_BACKEND": "FLASH_ATTN"}, choice=FP8),
    Case("fp8-kv-refused", "error", "rtx-3090-x2", {"KV_CACHE_DTYPE": "fp8_e4m3"}),
    Case("fp8-kv-refused", "error", "b200", {"KV_CACHE_DTYPE": "fp8"}),
    Case("kv-dtype-refused", "error", "h100", {"KV_CACHE_DTYPE": "fp8_e5m2"}),
    Case("kv-dtype-refused", "error", "h100", {"KV_CACHE_DTYPE": "nvfp4", "ATTENTION_BACKEND": "FLASHINFER"}),
    Case("kv-dtype-refused", "error", "dgx-spark", {"KV_CACHE_DTYPE": "nvfp4"}, choice=NVFP4),
    Case("kv-dtype-refused", "error", "h100", {"KV_CACHE_DTYPE": "int8_per_token_head"}),
    Case("kv-dtype-refused", "error", "rtx-3090-x2", {"KV_CACHE_DTYPE": "fp8_per_token_head",
         "ATTENTION_BACKEND": "TRITON_ATTN", "DFLASH_ATTENTION_BACKEND": "TRITON_ATTN"}),
    Case("kv-dtype-refused", "error", "h100", {"KV_CACHE_DTYPE": "turboquant_k8v4", "ATTENTION_BACKEND": ""}),
    Case("runner-cannot-draft", "error", "h100", {"VLLM_USE_V2_MODEL_RUNNER": "0"},
         drafter={"architectures": ["DFlash2DraftModel"]}),
    Case("runner-cannot-draft", "error", "h100", {"VLLM_USE_V2_MODEL_RUNNER": "0"},
         drafter={"layer_types": ["sliding_attention", "full_attention"]}),
    Case("fp8-kv-without-backend", "warning", "h100", {"KV_CACHE_DTYPE": "fp8", "DFLASH_ATTENTION_BACKEND": ""}),
    Case("fp8-kv-forced", "error", "dgx-spark", {"ATTENTION_BACKEND": "FLASHINFER"}, choice=NVFP4),
    Case("fp8-kv-forced", "error", "rtx-5090", {"DFLASH_ATTENTION_BACKEND": "FLASH_ATTN"}, choice=NVFP4),
    Case("backend-refuses-target", "error", "h100", {"ATTENTION_BACKEND": "FLASH_ATTN"},
         choice={"model": "gemma-4-31b-it-nvfp4"}),
    Case("fp8-kv-refused", "error", "h100", {"KV_CACHE_DTYPE": "fp8"}, choice={"model": "gemma-4-31b-it-bf16"}),
    Case("prefix-caching-kills-cpu", "error", "cpu", {"ENABLE_PREFIX_CACHING": "on"}),
    Case("prefix-caching-kills-cpu", "error", "cpu", {"ENABLE_PREFIX_CACHING": ""}),
    Case("prefix-caching-unsound", "note", "h100"),
    Case("images-while-drafting", "note", "rtx-3090"),
    Case("prefix-caching-unsound", "warning", "dgx-spark", {"ENABLE_PREFIX_CACHING": "on"}, choice=AEON),
    Case("quantization-contradicts", "error", "h100", {"QUANTIZATION": "modelopt"}, target={
        "quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
    }),
    Case("quantization-contradicts", "error", "b200", {"QUANTIZATION": "modelopt"},
         choice={"model": "qwen3.5-27b-bf16"}),
    Case("target-without-head", "error", "h100", {"DFLASH_DRAFTER": "mtp"}, target={}),
    Case("target-without-head", "error", "h100", {"DFLASH_DRAFTER": "MTP"}, target=WITH_HEAD, head=False),
    Case("drafter-named-twice", "error", "cpu", {"DFLASH_DRAFTER": "/data/mine", "DRAFTER_HOST_PATH": "/data/theirs"}),
    Case("drafter-of-another-target", "error", "h100", target={"text_config": {"hidden_size": 5120}},
         drafter={"hidden_size": 2560}),
    Case("drafter-of-another-target", "error", "h100", target={"text_config": {"num_hidden_layers": 48}},
         drafter={"dflash_config": {"target_layer_ids": [1, 61]}}),
    Case("drafter-of-another-target", "error", "h100", target={"vocab_size": 248320}, drafter={"vocab_size": 151936}),
    Case("drafter-of-another-target", "error", "rtx-3090", target=GGUF, drafter={
        "general.architecture": "dflash-draft", "dflash-draft.embedding_length": 4096}),
    Case("drafter-of-another-target", "error", "rtx-3090", target=GGUF, drafter={
        "general.architecture": "dflash-draft", "dflash-draft.dflash.target_layer_ids": (1, 64)}),
    # llama.cpp counts the embedding's output as a layer
    Case("drafter-of-another-target", "error", "rtx-3090", target=GGUF, drafter={
        "general.architecture": "dflash", "dflash.target_layers": (2, 65)}),
    Case("drafter-of-another-target", "error", "rtx-3090", target=GGUF, drafter={
        "general.architecture": "dflash", "tokenizer.ggml.tokens.length": 248320, "tokenizer.ggml.tokens.sha256": "b"}),
    Case("target-of-another-model", "error", "h100", target={"text_config": {"hidden_size": 4096}}),
    Case("target-of-another-model", "error", "rtx-3090", target={
        "general.architecture": "qwen35", "qwen35.embedding_length": 4096}),
    Case("target-unknown-to-engine", "error", "cpu", target={"general.architecture": "qwen99"},
         choice={"engine": "llamacpp"}),
    # a vision projector
    Case("target-unknown-to-engine", "error", "cpu", target={"general.architecture": "clip"},
         choice={"engine": "llamacpp"}),
    Case("target-unknown-to-engine", "error", "cpu", target={"general.architecture": "clip"},
         choice={"engine": "llamacpp-buun"}),
    # a drafter
    Case("target-unknown-to-engine", "error", "cpu", target={"general.architecture": "dflash"},
         choice={"engine": "llamacpp"}),
    Case("projector-of-another-kind", "error", "rtx-3090", {"MMPROJ_FILE": "target.gguf"}, target=GGUF,
         more={"projector": "qwen35"}),
    Case("projector-of-another-kind", "error", "rtx-3090", {"MMPROJ_FILE": "drafter.gguf"}, target=GGUF,
         more={"projector": "dflash"}),
    Case("cache-instead-of-snapshot", "error", "h100", {"MODEL_HOST_PATH": "/hub/models--a--b"},
         more={"snapshots": {"MODEL_HOST_PATH": "/hub/models--a--b/snapshots/1f"}}),
    Case("cache-instead-of-snapshot", "error", "h100", {"DRAFTER_HOST_PATH": "/hub/models--a--b"},
         more={"snapshots": {"DRAFTER_HOST_PATH": "/hub/models--a--b/snapshots/1f"}}),
    Case("target-without-processor", "error", "h100", target=VISION, more={"processor": False}),
    Case("target-without-processor", "error", "h100", target=VISION, more={"processor": False},
         choice={"engine": "sglang"}),
    Case("token-beyond-embedding", "warning", "h100", target={"vocab_size": 262144}, more={"largest_token": 262144}),
    Case("token-beyond-embedding", "error", "h100", target={"text_config": {"vocab_size": 32000}},
         more={"largest_token": 151668}),
    Case("target-without-tokenizer", "error", "h100", target={}, tokenizer=False),
    Case("target-without-template", "warning", "h100", target={}, template=False),
    Case("positions-differ", "note", "h100", target={"rope_parameters": {"rope_theta": 1e7}},
         drafter={"rope_theta": 1000000}),
    Case("positions-differ", "note", "h100", target={
        "text_config": {"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}},
        drafter={"rope_theta": 1000000}),
    Case("context-beyond-drafter-config", "warning", "h100", drafter={"max_position_embeddings": 4096}),
    Case("context-beyond-drafter-config", "error", "h100", drafter={"max_position_embeddings": 4096},
         choice={"engine": "sglang"}),
    Case("drafter-unknown-to-engine", "error", "h100", drafter={"architectures": ["Qwen3ForCausalLM"]}),
    Case("drafter-windows-not-run", "error", "dgx-spark", choice=AEON, drafter={
        "layer_types": ["sliding_attention", "full_attention"]
    }),
    Case("drafter-of-speculators", "warning", "h100", choice={"engine": "sglang"}, drafter={
        "speculators_model_type": "dflash"
    }),
    Case("drafter-quantised", "warning", "h100", drafter={"quantization_config": {"quant_method": "fp8"}}),
    # a backend of latent attention with a target that has none
    Case("backend-refuses-target", "error", "h100", {"ATTENTION_BACKEND": "TRITON_MLA"}),
    Case("repository-gated", "note", "rtx-pro-6000", choice={"model": "llama-3.1-8b-instruct-bf16"}),
    Case("thinking-differs", "warning", "h100", {"ENABLE_THINKING": "off"}, choice={"model": "qwen3.5-27b-fp8"}),
    Case("images-are-not-drafted", "warning", "rtx-3090", {"MMPROJ_FILE": "mmproj-BF16.gguf"}, choice=FORK),
    Case("parser-differs", "warning", "h100", {"REASONING_PARSER": ""}),
    Case("parser-differs", "warning", "h100", {"TOOL_CALL_PARSER": "hermes"}),
    Case("turns-read-again", "note", "dgx-spark", choice=AEON),
    Case("turns-read-again", "note", "h100", {"ENABLE_PREFIX_CACHING": "off"}),
    Case("heads-do-not-divide", "error", "rtx-3090-x4", {"TENSOR_PARALLEL_SIZE": "5"}),
    Case("heads-do-not-divide", "error", "cpu", {"TENSOR_PARALLEL_SIZE": "2"}),
    Case("heads-do-not-divide", "error", "h100", {"TENSOR_PARALLEL_SIZE": "2"},
         target={"text_config": {"linear_num_key_heads": 1}}),
    Case("heads-do-not-divide", "error", "h100-x4", {"TENSOR_PARALLEL_SIZE": "8"},
         choice={"model": "minimax-m2.5-fp8"}),
    Case("more-gpus-than-there-are", "error", "rtx-3090-x2", {"TENSOR_PARALLEL_SIZE": "4"}),
    Case("more-gpus-than-there-are", "error", "rtx-3090-x2", {"DATA_PARALLEL_SIZE": "4"}),
    Case("pipeline-with-drafter", "error", "rtx-3090-x2", {"EXTRA_ARGS": "--pipeline-parallel-size 2"}),
    Case("master-address-missing", "error", "dgx-spark-x2", choice={"master_addr": None}),
    Case("sleeps-among-several", "error", "dgx-spark-x2", {"IDLE_MINUTES": "10"}),
    Case("copies-on-several-machines", "error", "dgx-spark-x2", {"DATA_PARALLEL_SIZE": "2"}),
    Case("argument-is-gone", "error", "h100", {"EXTRA_ARGS": "--swap-space 4"}),
    Case("argument-is-gone", "warning", "h100", {"VLLM_NVFP4_GEMM_BACKEND": "flashinfer-cutlass"}),
    Case("argument-is-gone", "error", "h100", {"EXTRA_ARGS": "--mamba-scheduler-strategy extra_buffer"},
         choice={"engine": "sglang"}),
    Case("argument-is-unknown", "error", "h100", {"EXTRA_ARGS": "--no-such"}),
    Case("argument-is-unknown", "error", "h100", {"EXTRA_ARGS": "--max-num-seqss 4"}),
    Case("argument-is-unknown", "error", "h100", {"EXTRA_ARGS": "--cache-ram 0"}),
    Case("argument-is-unknown", "error", "h100", {"EXTRA_ARGS": "--schedule-policy lpm"}),
    Case("argument-is-unknown", "error", "h100", {"EXTRA_ARGS": "--no-such-thing"}, choice={"engine": "sglang"}),
    Case("argument-is-unknown", "error", "rtx-3090", {"EXTRA_ARGS": "--thread 4"}, choice={"engine": "llamacpp"}),
    Case("argument-is-unknown", "error", "rtx-3090", {"EXTRA_ARGS": "-nglx 4"}, choice={"engine": "llamacpp"}),
    Case("setting-of-another-engine", "warning", "rtx-3090", {"ATTENTION_BACKEND": "FLASH_ATTN"}),
    Case("bind-is-no-address", "error", "h100", {"DFLASH_BIND": "localhost"}),
    Case("open-to-the-network", "warning", "h100", {"DFLASH_BIND": "0.0.0.0"}),
    Case("setting-of-another-engine", "warning", "rtx-3090", {"OTLP_TRACES_ENDPOINT": "http://10.0.0.7:4317"}),
    Case("traces-stay-in-the-container", "warning", "h100", {"OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4317"}),
    Case("domain-needs-containers", "error", "dgx-spark-x2", {"DFLASH_DOMAIN": "llm.example.com"}),
    Case("target-notice", "note", "dgx-spark", choice=AEON),
]  # fmt: skip

# Findings about what was chosen, which no setting takes away, or which the default settings have too.
ALWAYS = {
    "answers-change",
    "loader-unproven",
    "base-image-unseen",
    "context-beyond-drafter",
    "profile-computed",
    "target-notice",
    "repository-gated",
    "drafter-slows-down",
    "images-while-drafting",
    "prefix-caching-unsound",
    "turns-read-again",
}


@each_of(CASES)
def test_a_rule_finds_what_it_is_for(case: Case) -> None:
    found = findings(case)[case.rule]
    assert found.severity == case.severity
    assert found.message
    assert found.fix
    if case.rule not in ALWAYS:
        usual = usual_findings(case.profile, case.choice.get("model"), case.choice.get("engine"))
        assert case.rule not in usual


def test_every_rule_has_a_case_and_is_named_after_what_it_finds() -> None:
    assert {rule.__name__.replace("_", "-") for rule in RULES} == {case.rule for case in CASES}


def test_a_rule_that_reads_checkpoints_says_so() -> None:
    """`pull` checks these rules before it fetches weights, so none may be missing."""
    unread: dict[str, Any] = dict.fromkeys(("target", "drafter", "tokenizer", "template", "head")) | {"more": {}}
    cases = [case for case in CASES if case.rule in findings(case)]
    readers = {case.rule for case in cases if case.rule not in findings(replace(case, **unread))}
    assert {rule.__name__.replace("_", "-") for rule in CHECKPOINT_RULES} == readers


@each_of(CASES)
def test_a_finding_says_why_it_matters(case: Case) -> None:
    found = findings(case)[case.rule]
    assert found.why or found.id == "target-notice"


@pytest.mark.parametrize("edited", [{"DFLASH_NUM_SPEC_TOKENS": "7"}, {"MAX_NUM_BATCHED_TOKENS": "32"}])
def test_the_bounds_themselves_are_allowed(edited: Mapping[str, str]) -> None:
    found = findings(Case("", "note", "cpu", edited))
    assert not [finding for finding in found.values() if finding.severity == "error"]


@pytest.mark.parametrize("build", ["b11550", ""])
def test_a_llama_cpp_that_may_know_more_architectures_is_not_judged(build: str) -> None:
    facts, read = MACHINES["cpu"], Checkpoints({"general.architecture": "qwen99"})
    made = plan_deployment(facts, Choice(profile="cpu", engine="llamacpp"), load_catalog(), read)
    assert target_unknown_to_engine(made, facts) is not None
    assert target_unknown_to_engine(replace(made, engine_version="b11434"), facts) is not None
    assert target_unknown_to_engine(replace(made, engine_version=build), facts) is None
    fork = plan_deployment(facts, Choice(profile="cpu", engine="llamacpp-buun"), load_catalog(), read)
    assert target_unknown_to_engine(fork, facts) is None


def test_without_a_drafter_its_rules_say_nothing() -> None:
    edited = {"DFLASH_DRAFTER": "off", "DFLASH_NUM_SPEC_TOKENS": "99", "MAX_NUM_BATCHED_TOKENS": "31"}
    assert not {"draft-tokens-exceed-block", "budget-too-small"} & set(findings(Case("", "note", "cpu", edited)))


@pytest.mark.parametrize("thinking", ["", "on", "off"])
def test_a_drafter_that_was_trained_with_and_without_thinking_serves_both(thinking: str) -> None:
    assert "thinking-differs" not in findings(Case("", "note", "cpu", {"ENABLE_THINKING": thinking}))


@pytest.mark.parametrize("target", [WITH_HEAD, {"num_nextn_predict_layers": 1}, None])
def test_a_head_of_the_target_s_own_is_no_drafter_and_needs_none(target: Mapping[str, object] | None) -> None:
    edited = {"DFLASH_DRAFTER": "mtp", "DFLASH_NUM_SPEC_TOKENS": "2"}
    found = findings(Case("", "note", "h100", edited, target=target, drafter={"hidden_size": 1}, head=True))
    assert not [finding for finding in found.values() if finding.severity == "error"]
    # its drafts take positions like those of a drafter
    edited["MAX_NUM_BATCHED_TOKENS"] = "10"
    assert "budget-too-small" in findings(Case("", "note", "h100", edited, target=target))


@pytest.mark.parametrize("host", ["localhost", "::1", "300.1.1.1"])
def test_docker_publishes_on_addresses_and_a_process_listens_on_names(host: str) -> None:
    case = Case("", "note", "cpu", {"DFLASH_BIND": host, "DFLASH_RUNTIME": "compose"})
    assert "bind-is-no-address" in findings(case)
    native = replace(case, edited={"DFLASH_BIND": host, "DFLASH_RUNTIME": "native"})
    assert "bind-is-no-address" not in findings(native)


@pytest.mark.parametrize(
    ("profile", "edited", "said"),
    [
        ("h100", {}, True),
        ("rtx-3090", {"DFLASH_ENGINE": "llamacpp"}, True),
        ("h100", {"DFLASH_RUNTIME": "native"}, False),
        # of the host's own network
        ("dgx-spark-x2", {}, False),
    ],
)
def test_a_port_of_docker_passes_the_firewall_of_the_machine(
    profile: str, edited: Mapping[str, str], said: bool
) -> None:
    found = findings(Case("", "note", profile, {"DFLASH_BIND": "0.0.0.0"} | dict(edited)))
    assert ("`ufw`" in found["open-to-the-network"].why) is said


@pytest.mark.parametrize(
    "edited",
    [
        {"KV_CACHE_DTYPE": "nvfp4", "DFLASH_KV_CACHE_DTYPE": "auto", "ATTENTION_BACKEND": "FLASHINFER"},
        {"KV_CACHE_DTYPE": "turboquant_k8v4", "DFLASH_KV_CACHE_DTYPE": "auto", "ATTENTION_BACKEND": "TURBOQUANT"},
        {"KV_CACHE_DTYPE": "int8_per_token_head", "ATTENTION_BACKEND": "", "DFLASH_ATTENTION_BACKEND": ""},
        {"KV_CACHE_DTYPE": "fp8_ds_mla"},
        {"KV_CACHE_DTYPE": "nvfp4", "DFLASH_DRAFTER": "off", "ATTENTION_BACKEND": ""},
    ],
    ids=lambda edited: "-".join(edited.values()),
)
def test_a_type_of_kv_cache_that_vllm_has_is_allowed_where_a_backend_reads_it(edited: Mapping[str, str]) -> None:
    assert not {"kv-dtype-refused", "kv-dtype-unknown"} & set(findings(Case("", "note", "h100", edited)))


@pytest.mark.parametrize("value", ["", "1"])
def test_the_v2_model_runner_is_no_finding(value: str) -> None:
    case = Case("", "note", "h100", {"VLLM_USE_V2_MODEL_RUNNER": value})
    assert "runner-cannot-draft" not in findings(replace(case, drafter={"architectures": ["DFlash2DraftModel"]}))


def test_a_budget_of_8192_is_enough_for_releases_that_compare_the_whole_step() -> None:
    assert "budget-leaves-little" not in findings(Case("", "note", "h100", {"MAX_NUM_BATCHED_TOKENS": "8192"}))


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3"])
def test_fp8_for_the_target_alone_is_allowed_where_its_backend_reads_it(dtype: str) -> None:
    edited = {"KV_CACHE_DTYPE": dtype, "DFLASH_KV_CACHE_DTYPE": "auto"}
    assert "fp8-kv-refused" not in findings(Case("", "note", "h100", edited))


@each_of([
    ("h100", None, "--seed 1 --enable_eplb -O3 -O.mode=3 -ep --compilation-config.mode 3 --generation-c auto"),
    ("h100", None, "--override-generation-config '{\"temperature\": -1}' --no-enable-chunked-prefill"),
    ("h100", "sglang", "--schedule-policy lpm --page-size 64 --random-seed -1 --cuda-graph-max 8"),
    ("rtx-3090", "llamacpp", "-t 4 --threads 4 --temp -1 --load-mode mmap --slot_save_path x"),
    # its parser was never asked
    ("dgx-spark", "aeon-ultimate-0.27", "--no-such"),
])  # fmt: skip
def test_an_option_that_the_release_knows_is_allowed(row: tuple[str, str | None, str]) -> None:
    profile, engine, arguments = row
    found = findings(Case("", "note", profile, {"EXTRA_ARGS": arguments}, choice={"engine": engine}))
    assert "argument-is-unknown" not in found


def test_a_release_of_another_version_is_not_judged() -> None:
    case = Case("", "note", "h100", {"EXTRA_ARGS": "--no-such"})
    made = plan_deployment(MACHINES["h100"], Choice(profile="h100", edited=case.edited), load_catalog(), Checkpoints())
    assert argument_is_unknown(made, MACHINES["h100"]) is not None
    assert argument_is_unknown(replace(made, engine_version="0.34.0"), MACHINES["h100"]) is None


@pytest.mark.parametrize(
    "case",
    [
        Case("", "note", "h100", target=VISION, more={"processor": True}),
        Case("", "note", "h100", target=VISION),
        Case("", "note", "h100", {"EXTRA_ARGS": "--language_model_only"}, VISION, more={"processor": False}),
        Case("", "note", "h100", {"EXTRA_ARGS": "--limit-mm-per-prompt={}"}, VISION, more={"processor": False}),
        Case("", "note", "h100", target=VISION | {"vision_config": None}, more={"processor": False}),
        # its processor is the engine's
        Case("", "note", "h100", target=VISION | {"architectures": ["InternVLChatModel"]}, more={"processor": False}),
        Case("", "note", "h100", target={"vocab_size": 1024}, more={"largest_token": 1023}),
        Case("", "note", "h100", target={}, more={"largest_token": 1023}),
        Case("", "note", "rtx-3090", {"MMPROJ_FILE": "mmproj.gguf"}, GGUF, more={"projector": "clip"}),
    ],
)
def test_weights_that_have_what_they_need(case: Case) -> None:
    assert not {"target-without-processor", "token-beyond-embedding", "projector-of-another-kind"} & set(findings(case))


LOST = "nvidia-smi fails: Unable to determine the device handle for GPU1: 0000:41:00.0: GPU is lost"


def test_what_is_missing_and_what_nvidia_smi_said_are_told_together() -> None:
    facts = replace(machine(H100), gpu_problem=LOST)
    found = findings(Case("", "note", "h100-x2", facts=facts))["gpu-missing"]
    assert found.message == f"GPUs that the plan needs: 2; GPUs that respond: 1; {LOST}"
    assert "reboot" in found.fix
    unread = findings(Case("", "note", "h100", facts=replace(machine(), gpu_problem=LOST)))
    assert LOST in unread["gpu-missing"].message
    assert "hardware-differs" not in unread


def test_the_gpus_that_respond_can_be_named_and_a_warning_refuses_nothing() -> None:
    two = machine(H100, replace(H100, index=1))
    named = Case("", "note", "h100", {"CUDA_VISIBLE_DEVICES": "1"}, facts=replace(two, gpu_problem=LOST))
    warned = Case("", "note", "h100", facts=replace(two, gpu_problem="nvidia-smi fails: WARNING: infoROM is corrupted"))
    elsewhere = Case("", "note", "h100", facts=machine())
    fewer = Case("", "note", "h100-x2", {"TENSOR_PARALLEL_SIZE": "1"}, facts=machine(H100))
    for case in (named, warned, elsewhere, fewer, Case("", "note", "cpu", facts=replace(machine(), gpu_problem=LOST))):
        assert "gpu-missing" not in findings(case)


def test_a_named_slice_is_the_gpu_of_the_plan() -> None:
    found = findings(Case("", "note", "h100", {"CUDA_VISIBLE_DEVICES": "MIG-whole"}, facts=SLICED))
    assert not {"visible-gpus", "hardware-differs"} & set(found)
    small = findings(Case("", "note", "h100", {"CUDA_VISIBLE_DEVICES": "MIG-small"}, facts=SLICED))
    assert "NVIDIA H100 80GB HBM3 MIG 1c.1g.10gb with 10 GiB" in small["visible-gpus"].message
    two = findings(Case("", "note", "h100-x2", {"CUDA_VISIBLE_DEVICES": "MIG-whole,MIG-small"}, facts=SLICED))
    assert "TENSOR_PARALLEL_SIZE=2 over MIG slices" in two["visible-gpus"].message
    # slices that were not read may be there
    unread = machine(replace(H100, mig=True), container_engine=DOCKER)
    assert "visible-gpus" not in findings(Case("", "note", "h100", {"CUDA_VISIBLE_DEVICES": "MIG-any"}, facts=unread))
