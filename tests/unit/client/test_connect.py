"""Configurations for clients: each is well-formed, has the endpoint, and never the key."""

import json
import tomllib

import pytest
import yaml

from dflash_deploy.assets import asset
from dflash_deploy.connect import KEY_VARIABLE, EndpointFacts, clients, configuration

NASTY = EndpointFacts(
    "http://127.0.0.1:8000", 'it\'s "a" $model\\ \U0001f600 \x7f\x85\u2028\u00e9', 4096, "/home/you/my box's $dir"
)
PLAIN = EndpointFacts("http://127.0.0.1:8000", "tiny", 4096, "/home/you/box")


def text_of(name: str, place: EndpointFacts) -> str:
    return configuration(clients()[name], place)


def named(suffix: str) -> list[str]:
    return [name for name, client in clients().items() if client.file.endswith(suffix)]


def test_every_template_belongs_to_a_client() -> None:
    files = {path.name for path in asset("connect").iterdir() if path.is_file()}
    assert files == {client.file for client in clients().values()} | {"clients.yaml"}


@pytest.mark.parametrize("name", clients())
@pytest.mark.parametrize("place", [PLAIN, NASTY], ids=["plain", "nasty"])
def test_nothing_is_left_to_fill_in_and_the_key_is_a_reference(name: str, place: EndpointFacts) -> None:
    text = text_of(name, place)
    assert "__" not in text
    assert KEY_VARIABLE in text
    assert "http://127.0.0.1:8000" in text


@pytest.mark.parametrize("name", named(".py"))
def test_python_reads_it(name: str) -> None:
    compile(text_of(name, NASTY), name, "exec")


def test_json_yaml_and_toml_hold_what_was_meant() -> None:
    opencode = json.loads(text_of("opencode", NASTY))
    assert list(opencode["provider"]["dflash"]["models"]) == [NASTY.model]
    assert opencode["provider"]["dflash"]["options"]["apiKey"] == f"{{env:{KEY_VARIABLE}}}"
    codex = tomllib.loads(text_of("codex", NASTY))
    assert (codex["model"], codex["model_context_window"]) == (NASTY.model, 4096)
    assert codex["model_providers"]["dflash"]["env_key"] == KEY_VARIABLE
    (model,) = yaml.safe_load(text_of("litellm", NASTY))["model_list"]
    assert model["litellm_params"] == {
        "model": f"hosted_vllm/{NASTY.model}",
        "api_base": "http://127.0.0.1:8000/v1",
        "api_key": f"os.environ/{KEY_VARIABLE}",
    }
    (model,) = yaml.safe_load(text_of("continue", NASTY))["models"]
    assert (model["model"], model["apiKey"]) == (NASTY.model, f"${{{{ secrets.{KEY_VARIABLE} }}}}")
    environment = yaml.safe_load(text_of("open-webui", NASTY))["services"]["open-webui"]["environment"]
    assert environment["OPENAI_API_BASE_URL"] == "http://127.0.0.1:8000/v1"
