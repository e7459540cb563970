"""OTLP_TRACES_ENDPOINT: valid endpoints, the arguments and variables of each engine, and missing packages."""

import sys

import pytest

from dflash_deploy.serve import traces
from dflash_deploy.serve.engines import ENGINES, Build
from dflash_deploy.serve.engines.base import traces_environment
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Settings

GRPC, HTTP = "http://collector:4317", "https://[fd00::1]:4318/v1/traces"
BARE = {"MODEL_PATH": "/models/target"}


def settings(endpoint: str) -> Settings:
    return Settings(BARE | {"OTLP_TRACES_ENDPOINT": endpoint})


@pytest.mark.parametrize(
    ("written", "protocol"),
    [(GRPC, "grpc"), (f"{GRPC}/", "grpc"), (HTTP, "http/protobuf"), ("https://10.0.0.7:443/otlp", "http/protobuf")],
)
def test_the_path_decides_the_protocol(written: str, protocol: str) -> None:
    endpoint = settings(written).otlp_traces_endpoint
    assert endpoint is not None
    assert (str(endpoint), endpoint.protocol) == (written.rstrip("/"), protocol)


@pytest.mark.parametrize(
    "written",
    [
        "collector:4317",
        "http://collector",
        "grpc://collector:4317",
        "http://ada:secret@collector:4317",
        "http://collector:4317?key=secret",
        "http://collector:70000",
        "http://collector:0",
        "http://[collector]:4317",
        "http://a b:4317",
        "http://collector:4317/v1/traces#x",
    ],
)
def test_what_is_no_endpoint_is_refused_and_not_repeated(written: str) -> None:
    with pytest.raises(Refused, match="OTLP_TRACES_ENDPOINT is not a valid OTLP endpoint") as refusal:
        settings(written)
    assert "secret" not in refusal.value.message
    assert "http://HOST:4318/v1/traces" in refusal.value.hint


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_engine_gets_argument_and_variables(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "EXPORTERS", ("json",))
    kind = ENGINES[engine]
    made = kind.arguments(settings(GRPC), Build("0.33.0"))
    assert made[made.index("--otlp-traces-endpoint") + 1] == GRPC
    assert ("--enable-trace" in made) is (engine == "sglang")
    assert traces_environment(settings(HTTP), kind) == {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": engine,
    }


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_without_an_endpoint_nothing_speaks_of_traces(engine: str) -> None:
    assert not [word for word in ENGINES[engine].arguments(settings(""), Build("0.33.0")) if "trace" in word]
    assert traces_environment(settings(""), ENGINES[engine]) == {}


@pytest.mark.parametrize("missing", ["dflash_no_such_package.trace", "json.no_such_module"])
def test_missing_packages_are_refused_before_the_start(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "EXPORTERS", ("json", missing))
    monkeypatch.delitem(sys.modules, missing, raising=False)
    with pytest.raises(Refused, match="vLLM has no OpenTelemetry beside it") as refusal:
        traces_environment(settings(GRPC), ENGINES["vllm"])
    assert "opentelemetry-exporter-otlp" in refusal.value.hint


def test_llama_cpp_has_no_traces() -> None:
    kind = ENGINES["llamacpp"]
    assert not kind.knows(Settings.otlp_traces_endpoint)
    made = kind.arguments(Settings({**BARE, "MODEL_FILE": "t.gguf", "OTLP_TRACES_ENDPOINT": GRPC}), Build("b11434"))
    assert not [word for word in made if "otlp" in word or "4317" in word]
