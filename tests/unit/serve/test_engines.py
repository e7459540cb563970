"""One set of settings, in the arguments of each engine."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash_deploy.serve.door.__main__ import BEHIND, without_secrets
from dflash_deploy.serve.engines import DEFAULT, ENGINES, Build
from dflash_deploy.serve.engines.installed import InstalledEngine
from dflash_deploy.serve.engines.sglang import ONE_DOOR
from dflash_deploy.serve.engines.sglang_server import UnprintedKey, check_one_door
from dflash_deploy.serve.launch import prepare
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Settings

SETTINGS = {
    "MODEL_PATH": "/models/target",
    "SERVED_MODEL_NAME": "qwen",
    "DFLASH_DRAFTER": "z-lab/Qwen3.5-27B-DFlash",
    "DRAFTER_PATH": "/models/drafter",
    "DFLASH_NUM_SPEC_TOKENS": "15",
    "MAX_MODEL_LEN": "6144",
    "MAX_NUM_SEQS": "2",
    "MAX_NUM_BATCHED_TOKENS": "256",
    "DFLASH_BIND": "0.0.0.0",
    "DFLASH_PORT": "8000",
}
GGUF = {**SETTINGS, "MODEL_FILE": "target.gguf", "DRAFTER_FILE": "drafter.gguf", "MMPROJ_FILE": "mmproj.gguf"}


# An option, the engine that has it, and the one that does not.
OPTIONS = [("draft-dflash", "llamacpp", "llamacpp-buun"), ("dflash-max-slots", "llamacpp-buun", "llamacpp")]


def arguments(engine: str, settings: dict[str, str]) -> list[str]:
    return ENGINES[engine].arguments(Settings(settings), Build("0.33.0"))


def test_sglang() -> None:
    more = {
        "GPU_MEMORY_UTILIZATION": "0.75",
        "TENSOR_PARALLEL_SIZE": "2",
        "KV_CACHE_DTYPE": "auto",
        "ATTENTION_BACKEND": "trtllm_mha",
        "DFLASH_ATTENTION_BACKEND": "fa4",
        "DFLASH_KV_CACHE_DTYPE": "bf16",
        "ENABLE_PREFIX_CACHING": "off",
        "ENFORCE_EAGER": "on",
        "LIMIT_IMAGES_PER_PROMPT": "4",
        "REASONING_PARSER": "qwen3",
        "TOOL_CALL_PARSER": "qwen3_coder",
        "ENABLE_THINKING": "off",
        "EXTRA_ARGS": "--random-seed 1",
    }
    assert arguments("sglang", SETTINGS | more) == [
        *("--model-path", "/models/target", "--served-model-name", "qwen"),
        *("--host", "0.0.0.0", "--port", "8000", "--enable-metrics"),
        *("--allowed-media-domains", "no-remote-media.invalid"),
        *("--context-length", "6144", "--max-running-requests", "2", "--chunked-prefill-size", "256"),
        *("--mem-fraction-static", "0.75", "--tp-size", "2"),
        *("--kv-cache-dtype", "auto", "--attention-backend", "trtllm_mha", "--disable-radix-cache"),
        "--disable-cuda-graph",
        *("--limit-mm-data-per-request", '{"image": 4, "video": 0}'),
        *("--reasoning-parser", "qwen3", "--tool-call-parser", "qwen3_coder"),
        *("--default-chat-template-kwargs", '{"enable_thinking": false}'),
        *("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "/models/drafter"),
        # the block of 16, of which vLLM counts 15
        *("--speculative-num-draft-tokens", "16", "--speculative-draft-attention-backend", "fa4"),
        *("--speculative-draft-kv-cache-dtype", "bf16"),
        *("--random-seed", "1"),
    ]


def test_sglangs_drafter_does_not_inherit_the_targets_quantization() -> None:
    flag = "--speculative-draft-model-quantization"
    made = arguments("sglang", SETTINGS | {"QUANTIZATION": "modelopt_fp4"})
    assert made[made.index(flag) + 1] == "unquant"
    assert flag not in arguments("sglang", SETTINGS)
    assert flag not in arguments("sglang", SETTINGS | {"QUANTIZATION": "modelopt_fp4", "DFLASH_DRAFTER": "off"})


def test_llama_cpp() -> None:
    assert arguments("llamacpp", GGUF | {"KV_CACHE_DTYPE": "q8_0", "ENABLE_THINKING": "on"}) == [
        *(
            "--model",
            "/models/target/target.gguf",
            "--alias",
            "qwen",
            "--metrics",
            "--no-webui",
        ),
        # two slots share the context
        *("--parallel", "2", "--ctx-size", "12288", "--batch-size", "256"),
        *("--cache-ram", "1024", "--n-gpu-layers", "99"),
        *("--flash-attn", "on", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0", "--jinja"),
        *("--mmproj", "/models/target/mmproj.gguf", "--chat-template-kwargs", '{"enable_thinking": true}'),
        *("--spec-draft-model", "/models/drafter/drafter.gguf", "--spec-type", "draft-dflash"),
        *("--spec-draft-n-max", "15", "--spec-draft-ngl", "99"),
    ]


def test_the_buun_fork_calls_it_otherwise() -> None:
    made = arguments("llamacpp-buun", GGUF)
    assert made[made.index("--model-draft") :] == [
        *("--model-draft", "/models/drafter/drafter.gguf", "--spec-type", "dflash", "--draft-max", "15"),
        *("--ctx-size-draft", "256", "--n-gpu-layers-draft", "99"),
    ]
    # two slots, each with a backup
    assert made[made.index("--ctx-size") + 1] == str(6144 * 2 * 2)
    plain = arguments("llamacpp-buun", GGUF | {"DFLASH_DRAFTER": "off"})
    assert plain[plain.index("--ctx-size") + 1] == str(6144 * 2)


@pytest.mark.parametrize(("batch", "micro"), [("256", "64"), ("2048", "512"), ("64", "64")])
def test_the_fork_gets_the_pairs_of_batches_that_it_advises(batch: str, micro: str) -> None:
    made = arguments("llamacpp-buun", GGUF | {"MAX_NUM_BATCHED_TOKENS": batch})
    assert made[made.index("--ubatch-size") + 1] == micro


@pytest.mark.parametrize("engine", ["sglang", "llamacpp", "llamacpp-buun"])
def test_without_a_drafter_nothing_speaks_of_one(engine: str) -> None:
    made = arguments(engine, GGUF | {"DFLASH_DRAFTER": "off"})
    assert not [word for word in made if "spec" in word or "draft" in word]


def test_two_machines() -> None:
    nodes = {"NODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
    vllm, sglang = arguments("vllm", SETTINGS | nodes), arguments("sglang", SETTINGS | nodes)
    assert vllm[vllm.index("--nnodes") :][:7] == [
        *("--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1"),
        "--headless",
    ]
    assert sglang[sglang.index("--nnodes") :][:6] == [
        *("--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "10.0.0.1:29501")
    ]
    assert "--headless" not in arguments("vllm", SETTINGS | nodes | {"NODE_RANK": "0"})
    with pytest.raises(Refused, match="one machine"):
        arguments("llamacpp", SETTINGS | nodes)
    with pytest.raises(Refused, match="NODE_RANK=2"):
        arguments("vllm", SETTINGS | nodes | {"NODE_RANK": "2"})


def test_sglang_gets_its_keys_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"VLLM_API_KEY": "first-key-of-some-length", "DFLASH_API_KEYS": "other-key-of-some-length"}
    monkeypatch.setattr("dflash_deploy.serve.engines.sglang.metadata.version", lambda name: "0.5.23")
    launch = prepare(SETTINGS | keys | {"DFLASH_ENGINE_FAMILY": "sglang"})
    assert launch.command[1:3] == ("-m", "dflash_deploy.serve.engines.sglang_server")
    assert not [word for word in launch.command if "key" in word]
    assert {name: launch.environment[name] for name in keys} == keys
    with pytest.raises(Refused, match="too short"):
        prepare(SETTINGS | keys | {"DFLASH_API_KEYS": "short", "DFLASH_ENGINE_FAMILY": "sglang"})
    with pytest.raises(Refused, match="VLLM_API_KEY is not set"):
        prepare(SETTINGS | {"DFLASH_ENGINE_FAMILY": "sglang"})


@pytest.mark.parametrize("extra", ["--grpc-port 9000", "--tokenizer_worker_num=4", "--disaggregation-mode prefill"])
def test_sglang_has_no_listener_without_the_gateway(extra: str) -> None:
    with pytest.raises(Refused, match="without the gateway"):
        arguments("sglang", SETTINGS | {"EXTRA_ARGS": extra})


@pytest.mark.parametrize(
    ("values", "environment", "said"),
    [
        ({"grpc_port": 9000}, {}, "grpc_port is 9000"),
        ({"tokenizer_worker_num": 4}, {}, "tokenizer_worker_num is 4"),
        ({}, {"SGLANG_RUST_SERVER": "1"}, "SGLANG_RUST_SERVER is set"),
    ],
)
def test_what_sglang_reads_elsewhere_opens_no_listener_either(
    values: dict[str, object], environment: dict[str, str], said: str
) -> None:
    check_one_door(SimpleNamespace(**ONE_DOOR), {"SGLANG_RUST_SERVER": "false"})
    with pytest.raises(Refused, match=said):
        check_one_door(SimpleNamespace(**{**ONE_DOOR, **values}), environment)


def test_sglang_takes_one_name() -> None:
    with pytest.raises(Refused, match="SERVED_MODEL_NAME"):
        arguments("sglang", SETTINGS | {"SERVED_MODEL_NAME": "a b"})


def test_the_drafters_cache_has_a_type_of_its_own_from_0_26_on() -> None:
    settings = Settings(SETTINGS | {"DFLASH_KV_CACHE_DTYPE": "auto"})
    made = ENGINES[DEFAULT].arguments(settings, Build("0.26.0"))
    assert '"kv_cache_dtype": "auto"' in made[made.index("--speculative-config") + 1]
    with pytest.raises(Refused, match="kv_cache_dtype"):
        ENGINES[DEFAULT].arguments(settings, Build("0.25.1"))


def test_without_a_compiler_nothing_is_compiled_on_a_processor(tmp_path: Path) -> None:
    def setting(*, cpu: bool = True, **base: str) -> str | None:
        return InstalledEngine("vllm", "0.32.0", cpu).environment(base).get("TORCH_COMPILE_DISABLE")

    for program in ("g++", "my-compiler"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    here = str(tmp_path)
    assert (setting(PATH=here), setting(PATH=here, CXX="my-compiler")) == (None, None)
    assert (setting(PATH="/nowhere"), setting(PATH=here, CXX="/nowhere/g++")) == ("1", "1")
    assert (setting(PATH="/nowhere", TORCH_COMPILE_DISABLE="0"), setting(PATH="/nowhere", cpu=False)) == ("0", None)


def test_media_are_not_followed_to_another_host_unless_env_says_so() -> None:
    engine = InstalledEngine("vllm", "0.33.0", cpu=False)
    assert engine.environment({})["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    assert engine.environment({"VLLM_MEDIA_URL_ALLOW_REDIRECTS": "1"})["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "1"


def test_each_engine_has_its_program() -> None:
    assert list(ENGINES["sglang"].program) == ["python3", "-m", "sglang.launch_server"]
    assert list(ENGINES["llamacpp-buun"].program) == ["llama-server"]


@pytest.fixture
def image_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server of an image."""
    server = tmp_path / "llama-server"
    server.touch()
    monkeypatch.setattr("dflash_deploy.serve.engines.llamacpp.LLAMA_SERVER", str(server))
    return str(server)


@pytest.mark.parametrize("family", ["llamacpp", "llamacpp-buun"])
def test_llama_cpp_runs_behind_the_door(image_server: str, family: str) -> None:
    launch = prepare({**GGUF, "DFLASH_ENGINE_FAMILY": family, "VLLM_API_KEY": "a-secret-of-some-length"})
    assert launch.command[1:5] == ("-m", "dflash_deploy.serve.door", "llamacpp", image_server)
    assert launch.command[5:] == launch.arguments
    assert "a-secret-of-some-length" not in launch.command
    # the door gives the server its address
    assert not {"--host", "--port"} & set(launch.arguments)
    assert "--n-gpu-layers" in launch.arguments


@pytest.mark.parametrize(
    ("libraries", "on_gpus"),
    [
        # as llama.cpp's images have them, for processors and for CUDA
        (("libggml-base.so", "libggml-cpu-haswell.so", "libggml-cpu-x64.so", "libllama.so.0"), False),
        (("libggml-base.so", "libggml-cpu-x64.so", "libggml-cuda.so"), True),
        # the fork's server contains its backends
        ((), True),
    ],
)
def test_an_image_for_processors_gets_no_arguments_for_gpus(
    image_server: str, libraries: tuple[str, ...], on_gpus: bool
) -> None:
    for name in libraries:
        Path(image_server).with_name(name).touch()
    launch = prepare({**GGUF, "DFLASH_ENGINE_FAMILY": "llamacpp", "VLLM_API_KEY": "a-secret-of-some-length"})
    assert launch.title == "llama.cpp: llama-server"
    assert ("--n-gpu-layers" in launch.arguments) is on_gpus


def test_llama_cpp_needs_a_valid_key(image_server: str) -> None:
    with pytest.raises(Refused, match="VLLM_API_KEY"):
        prepare({**GGUF, "DFLASH_ENGINE_FAMILY": "llamacpp"})


def test_an_installed_llama_cpp_runs_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = InstalledEngine("xllamacpp", "b11549", cpu=True, program=("python", "-m", "server"))
    monkeypatch.setattr("dflash_deploy.serve.engines.llamacpp.llama_server_of_wheel", lambda: wheel)
    environment = {**GGUF, "DFLASH_ENGINE_FAMILY": "llamacpp", "VLLM_API_KEY": "a-secret-of-some-length"}
    launch = prepare(environment)
    assert launch.title == "llama.cpp b11549: llama-server"
    assert launch.command[3:7] == ("llamacpp", "python", "-m", "server")
    assert not [word for word in launch.arguments if "gpu" in word or "ngl" in word]
    monkeypatch.setattr("dflash_deploy.serve.engines.llamacpp.llama_server_of_wheel", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Refused, match="not installed beside this Python"):
        prepare(environment)
    with pytest.raises(Refused, match="fork"):
        prepare({**environment, "DFLASH_ENGINE_FAMILY": "llamacpp-buun"})


@pytest.mark.parametrize(("option", "engine", "other"), OPTIONS)
def test_a_server_is_the_engines_whose_option_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, engine: str, other: str
) -> None:
    """On the PATH, or named by LLAMA_SERVER, which comes before the wheel."""
    monkeypatch.setattr("dflash_deploy.serve.engines.llamacpp.llama_server_of_wheel", lambda: None)
    monkeypatch.setattr("dflash_deploy.serve.engines.installed._build_of", lambda server: "b4711")
    monkeypatch.setenv("PATH", str(tmp_path))
    server = tmp_path / "llama-server"
    server.write_text(f"a program with the option {option}")
    assert ENGINES[engine].installed() is None
    server.chmod(0o755)
    found = InstalledEngine("llama-server", "b4711", cpu=True, program=(str(server),))
    assert (ENGINES[engine].installed(), ENGINES[other].installed()) == (found, None)
    monkeypatch.setenv("PATH", "/nowhere")
    named = Settings({"LLAMA_SERVER": str(server)})
    assert (ENGINES[engine].installed(named), ENGINES[other].installed(named)) == (found, None)
    assert ENGINES[engine].installed() is None


def test_the_engine_gets_a_key_of_its_own_and_none_of_the_endpoints() -> None:
    endpoint = {"VLLM_API_KEY": "a-secret-of-some-length", "DFLASH_API_KEYS": "b-secret", "DFLASH_SECRETS_FILE": "/x"}
    assert without_secrets({**endpoint, "PATH": "/bin", "HF_TOKEN": "hf_x"}) == {"PATH": "/bin"}
    given = BEHIND["llamacpp"].variables(Path("/run/engine.sock"), "own")
    assert given == {"LLAMA_ARG_HOST": "/run/engine.sock", "LLAMA_API_KEY": "own"}
    vllm = BEHIND["vllm"]
    assert vllm.variables(Path("/run/engine.sock"), "own") == {"VLLM_API_KEY": "own"}
    assert vllm.arguments(Path("/run/engine.sock")) == ["--uds", "/run/engine.sock"]


def test_an_image_of_an_unknown_engine_is_refused() -> None:
    with pytest.raises(Refused, match="DFLASH_ENGINE_FAMILY=tgi"):
        prepare({**SETTINGS, "DFLASH_ENGINE_FAMILY": "tgi"})


def test_a_key_that_is_not_written_out_is_still_the_key() -> None:
    key = UnprintedKey("a-secret-of-some-length")
    assert key == "a-secret-of-some-length"
    assert "secret" not in repr({"api_key": key})
    assert "secret" not in f"{[key]!r}"


@pytest.mark.parametrize(
    ("engine", "written", "meant"),
    [
        ("vllm", "--hos 0.0.0.0", "DFLASH_BIND"),
        ("vllm", "--ho=0.0.0.0", "DFLASH_BIND"),
        ("vllm", "--por 9", "DFLASH_PORT"),
        ("vllm", "--api-k KEY", "VLLM_API_KEY"),
        ("vllm", "--api_k KEY", "VLLM_API_KEY"),
        ("vllm", "--hf-tok KEY", "HF_TOKEN"),
        ("vllm", "--speculative-config.num_speculative_tokens 3", "DFLASH_DRAFTER"),
        ("vllm", "--allowed-media x", "ALLOWED_MEDIA_DOMAINS"),
        ("vllm", "--uds /tmp/s", "DFLASH_BIND"),
        ("vllm", "--config file.yaml", "EXTRA_ARGS"),
        ("sglang", "--hos 0.0.0.0", "DFLASH_BIND"),
        ("sglang", "--api KEY", "VLLM_API_KEY"),
        ("sglang", "--mem 0.5", "GPU_MEMORY_UTILIZATION"),
        ("sglang", "--grpc-p 9", "EXTRA_ARGS"),
        ("llamacpp", "--hf-token KEY", "HF_TOKEN"),
        ("llamacpp", "-hft KEY", "HF_TOKEN"),
    ],
)
def test_no_spelling_of_a_reserved_flag_passes(engine: str, written: str, meant: str) -> None:
    """`--hos 0.0.0.0` opened vLLM to all addresses, `--api-k KEY` was in `ps`, and `plan` printed it."""
    settings = Settings({"MODEL_PATH": "/m", "EXTRA_ARGS": written, "MODEL_FILE": "m.gguf"})
    with pytest.raises(Refused) as refused:
        ENGINES[engine].arguments(settings, Build("0.33.0"))
    assert meant in refused.value.hint
    assert "KEY" not in refused.value.message.replace("API_KEY", "")


@pytest.mark.parametrize(
    "written", ["--seed 1", "--max-logprobs 5", "--disable-log-stats", "--limit-mm-per-prompt.audio 1"]
)
def test_other_flags_of_an_engine_pass(written: str) -> None:
    arguments = ENGINES["vllm"].arguments(Settings({"MODEL_PATH": "/m", "EXTRA_ARGS": written}), Build("0.33.0"))
    assert written.split(maxsplit=1)[0] in arguments
