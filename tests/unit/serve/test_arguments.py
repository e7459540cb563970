"""Settings become exactly these arguments."""

import json

import pytest

from dflash_deploy.serve.engines import DEFAULT, ENGINES, Build
from dflash_deploy.serve.engines.vllm import has_dflash, minor_version
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Settings

FULL = {
    "MODEL_PATH": "/models/target",
    "SERVED_MODEL_NAME": "one two",
    "DFLASH_DRAFTER": "/models/drafter",
    "DFLASH_NUM_SPEC_TOKENS": "15",
    "DFLASH_SPEC_SCHEDULE": "1-4:15,5-16:3",
    "DFLASH_ATTENTION_BACKEND": "TRITON_ATTN",
    "MAX_MODEL_LEN": "65536",
    "MAX_NUM_SEQS": "16",
    "MAX_NUM_BATCHED_TOKENS": "32768",
    "GPU_MEMORY_UTILIZATION": "0.85",
    "TENSOR_PARALLEL_SIZE": "2",
    "KV_CACHE_DTYPE": "auto",
    "ATTENTION_BACKEND": "TRITON_ATTN",
    "QUANTIZATION": "modelopt",
    "ENABLE_PREFIX_CACHING": "off",
    "ENFORCE_EAGER": "on",
    "LIMIT_IMAGES_PER_PROMPT": "4",
    "MAX_BODY_MIB": "32",
    "ALLOWED_MEDIA_DOMAINS": "Images.example.com, 10.0.0.7",
    "REASONING_PARSER": "qwen3",
    "TOOL_CALL_PARSER": "qwen3_coder",
    "EXTRA_ARGS": "--seed 1",
    "DFLASH_BIND": "0.0.0.0",
    "DFLASH_PORT": "8000",
}


def test_all_settings() -> None:
    assert ENGINES[DEFAULT].arguments(Settings(FULL), Build("0.33.0")) == [
        *("serve", "/models/target"),
        *("--served-model-name", "one", "two"),
        *("--host", "0.0.0.0", "--port", "8000"),
        *("--disable-access-log-for-endpoints", "/health"),
        *("--allowed-media-domains", "images.example.com", "10.0.0.7"),
        *("--max-model-len", "65536"),
        *("--max-num-seqs", "16"),
        *("--max-num-batched-tokens", "32768"),
        *("--gpu-memory-utilization", "0.85"),
        *("--tensor-parallel-size", "2"),
        *("--kv-cache-dtype", "auto"),
        *("--attention-backend", "TRITON_ATTN"),
        *("--quantization", "modelopt"),
        "--no-enable-prefix-caching",
        "--enforce-eager",
        *("--limit-mm-per-prompt", '{"image": 4, "video": 0}'),
        *("--reasoning-parser", "qwen3"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder"),
        *(
            "--speculative-config",
            '{"method": "dflash", "model": "/models/drafter", "num_speculative_tokens": 15, '
            '"attention_backend": "TRITON_ATTN", '
            '"num_speculative_tokens_per_batch_size": [[1, 4, 15], [5, 16, 3]]}',
        ),
        *("--seed", "1"),
        *("--middleware", "dflash_deploy.serve.gateway.auth.DenyByDefault"),
    ]


@pytest.mark.parametrize(
    ("engine", "extra"),
    [
        ("vllm", "--api-key abc"),
        ("vllm", "--api-key=abc"),
        ("vllm", "--api_key=abc"),
        ("vllm", "--hf-token abc"),
        ("vllm", "--host 0.0.0.0"),
        ("vllm", "-tp 2"),
        ("vllm", "--allowed-media-domains everything.example.com"),
        ("sglang", "--speculative-num-draft-tokens 16"),
        ("llamacpp", "-ctk q8_0"),
        ("llamacpp-buun", "--api-key abc"),
    ],
)
def test_extra_args_cannot_fight_the_settings(engine: str, extra: str) -> None:
    settings = Settings({"MODEL_PATH": "/m", "EXTRA_ARGS": extra})
    with pytest.raises(Refused, match="EXTRA_ARGS") as refusal:
        ENGINES[engine].arguments(settings, Build("0.33.0"))
    assert refusal.value.hint


def test_the_least() -> None:
    arguments = ENGINES[DEFAULT].arguments(Settings({"MODEL_PATH": "/m"}), Build("0.18.1"))
    assert arguments == [
        *("serve", "/m", "--host", "127.0.0.1", "--port", "8000"),
        *("--disable-access-log-for-endpoints", "/health"),
        *("--allowed-media-domains", "no-remote-media.invalid"),
        *("--middleware", "dflash_deploy.serve.gateway.auth.DenyByDefault"),
    ]


def test_an_engine_that_sleeps_leaves_address_and_lock_to_the_door() -> None:
    arguments = ENGINES[DEFAULT].arguments(Settings({"MODEL_PATH": "/m", "IDLE_MINUTES": "10"}), Build("0.33.0"))
    assert not {"--host", "--port", "--middleware"} & set(arguments)


def test_no_layer_of_the_users_stands_in_front_of_the_lock() -> None:
    extra = "--middleware mine.First --middleware=mine.Second"
    arguments = ENGINES[DEFAULT].arguments(Settings({"MODEL_PATH": "/m", "EXTRA_ARGS": extra}), Build("0.33.0"))
    assert arguments[-5:] == [*extra.split(), "--middleware", "dflash_deploy.serve.gateway.auth.DenyByDefault"]


def test_images_come_from_anywhere_where_that_is_asked_for() -> None:
    arguments = ENGINES[DEFAULT].arguments(
        Settings({"MODEL_PATH": "/m", "ALLOWED_MEDIA_DOMAINS": "all"}), Build("0.33.0")
    )
    assert "--allowed-media-domains" not in arguments


@pytest.mark.parametrize("value", ["auto", "none", ""])
def test_no_quantization_flag_where_the_checkpoint_says_it_itself(value: str) -> None:
    arguments = ENGINES[DEFAULT].arguments(Settings({"MODEL_PATH": "/m", "QUANTIZATION": value}), Build("0.33.0"))
    assert "--quantization" not in arguments


@pytest.mark.parametrize(
    ("version", "cpu", "carries"), [("0.19.1", False, False), ("0.20.0", False, True), ("0.25.1", True, False)]
)
def test_dflash_needs_a_release_that_carries_it(version: str, cpu: bool, carries: bool) -> None:
    settings = Settings({"MODEL_PATH": "/m", "DFLASH_DRAFTER": "/d"})
    if carries:
        arguments = ENGINES[DEFAULT].arguments(settings, Build(version, cpu))
        config = json.loads(arguments[arguments.index("--speculative-config") + 1])
        assert config["method"] == "dflash"
    else:
        with pytest.raises(Refused, match="no DFlash"):
            ENGINES[DEFAULT].arguments(settings, Build(version, cpu))


def test_a_drafter_backend_is_refused_where_the_release_has_no_place_for_it() -> None:
    settings = Settings({"MODEL_PATH": "/m", "DFLASH_DRAFTER": "/d", "DFLASH_ATTENTION_BACKEND": "TRITON_ATTN"})
    with pytest.raises(Refused, match="attention_backend"):
        ENGINES[DEFAULT].arguments(settings, Build("0.20.0"))


def test_a_schedule_is_refused_where_the_release_has_none() -> None:
    settings = Settings({"MODEL_PATH": "/m", "DFLASH_DRAFTER": "/d", "DFLASH_SPEC_SCHEDULE": "1-2:7,3-8:3"})
    assert "[[1, 2, 7], [3, 8, 3]]" in " ".join(ENGINES[DEFAULT].arguments(settings, Build("0.24.0")))
    with pytest.raises(Refused, match="per_batch_size") as refusal:
        ENGINES[DEFAULT].arguments(settings, Build("0.23.0"))
    assert "DFLASH_SPEC_SCHEDULE" in refusal.value.hint


def test_the_target_s_own_head_drafts_without_other_weights() -> None:
    environment = FULL | {"DFLASH_DRAFTER": "MTP", "DRAFTER_PATH": "/models/drafter", "DFLASH_NUM_SPEC_TOKENS": "2"}
    settings = Settings(environment | {"DFLASH_SPEC_SCHEDULE": "1-4:2,5-16:1"})
    arguments = ENGINES[DEFAULT].arguments(settings, Build("0.24.0"))
    assert json.loads(arguments[arguments.index("--speculative-config") + 1]) == {
        "method": "mtp",
        "num_speculative_tokens": 2,
        "num_speculative_tokens_per_batch_size": [[1, 4, 2], [5, 16, 1]],
    }


@pytest.mark.parametrize("engine", ["sglang", "llamacpp", "llamacpp-buun"])
def test_the_target_s_own_head_is_refused_where_nothing_is_known_of_it(engine: str) -> None:
    settings = Settings({"MODEL_PATH": "/m", "MODEL_FILE": "t.gguf", "DFLASH_DRAFTER": "mtp"})
    with pytest.raises(Refused, match="supported with vLLM"):
        ENGINES[engine].arguments(settings, Build("0.5.23"))


def test_versions_as_people_have_them() -> None:
    assert has_dflash("0.19.1rc1.dev110+gb55d830ec", cpu=False)
    assert minor_version("0.19.1rc1.dev110+gb55d830ec") == (0, 19)
    assert minor_version("0.32.0+cpu") == (0, 32)
    with pytest.raises(Refused):
        minor_version("nightly")
