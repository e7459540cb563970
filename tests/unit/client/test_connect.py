"""Configurations for clients: each is well-formed, has the endpoint, and never the key."""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.assets import asset
from dflash_deploy.connect import KEY_VARIABLE, EndpointFacts, clients, configuration, merged, problems_of
from dflash_deploy.errors import BadInput, FileInvalid
from dflash_deploy.operations.connect import ClientFile, Connections
from dflash_deploy.redact import Redactor, Secret
from tools.reference.clients import NOT_RUN, runs

NASTY = EndpointFacts(
    "http://127.0.0.1:8000", 'it\'s "a" $model\\ \U0001f600 \x7f\x85\u2028\u00e9', 4096, "/home/you/my box's $dir"
)
TESTS = Path(__file__).parents[2]
PLAIN = EndpointFacts("http://127.0.0.1:8000", "tiny", 4096, "/home/you/box")


def text_of(name: str, place: EndpointFacts) -> str:
    return configuration(clients()[name], place)


def named(suffix: str) -> list[str]:
    return [name for name, client in clients().items() if client.file.endswith(suffix)]


def test_every_template_belongs_to_a_client() -> None:
    files = {path.name for path in asset("connect").iterdir() if path.is_file()}
    named_files = {file for client in clients().values() for file in (client.file, client.images_file) if file}
    assert files == named_files | {"clients.yaml"}


def test_each_client_was_run_or_has_its_reason() -> None:
    ran = {run.client for run in runs()}
    assert ran == set(yaml.safe_load((TESTS / "clients" / "clients.yaml").read_text()))
    assert ran.isdisjoint(NOT_RUN)
    assert set(clients()) <= ran | set(NOT_RUN)


def test_a_file_that_changed_meanwhile_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("old")
    planned = ClientFile(path, "old", "new")
    path.write_text("edited")
    with pytest.raises(BadInput, match="has changed meanwhile"):
        planned.write()
    assert [one.read_text() for one in tmp_path.iterdir()] == ["edited"]


@pytest.mark.parametrize("name", clients())
@pytest.mark.parametrize("place", [PLAIN, NASTY], ids=["plain", "nasty"])
def test_nothing_is_left_to_fill_in_and_the_key_is_a_reference(name: str, place: EndpointFacts) -> None:
    text = text_of(name, place)
    assert "__" not in text
    # VS Code asks for the key, and Zed makes the variable's name from the name of the provider
    assert KEY_VARIABLE in text or name in {"vscode", "zed"}
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


def read(name: str, text: str) -> Any:
    readers: Mapping[str, Callable[[str], Any]] = {".json": json.loads, ".yaml": yaml.safe_load, ".toml": tomllib.loads}
    return readers[Path(clients()[name].file).suffix](text)


def only(found: Any) -> Any:
    """The one entry of a list or a mapping."""
    (one,) = found.values() if isinstance(found, dict) else found
    return one


# Where each file has its models.
MODELS: Mapping[str, Callable[[Any], Any]] = {
    "opencode": lambda found: found["provider"]["dflash"]["models"],
    "pi": lambda found: found["providers"]["dflash"]["models"],
    "zed": lambda found: found["language_models"]["openai_compatible"]["dflash"]["available_models"],
    "vscode": lambda found: only(found)["models"],
    "qwen-code": lambda found: found["modelProviders"]["openai"],
    "continue": lambda found: found["models"],
    "litellm": lambda found: found["model_list"],
    "llm": lambda found: found,
}

# The limits and abilities of a model with images and tools, in the words of each client.
FULL: Mapping[str, Mapping[str, object]] = {
    "opencode": {"limit": {"context": 4096, "output": 1024}, "attachment": True, "tool_call": True, "reasoning": False},
    "pi": {"input": ["text", "image"], "contextWindow": 4096, "maxTokens": 1024, "reasoning": False},
    "zed": {"max_tokens": 4096, "max_output_tokens": 1024},
    "vscode": {"toolCalling": True, "vision": True, "thinking": False, "maxInputTokens": 3072, "maxOutputTokens": 1024},
    "qwen-code": {
        "generationConfig": {
            "contextWindowSize": 4096,
            "modalities": {"image": True},
            "samplingParams": {"max_tokens": 1024},
        }
    },
    "continue": {
        "capabilities": ["tool_use", "image_input"],
        "defaultCompletionOptions": {"contextLength": 4096, "maxTokens": 1024},
    },
    "litellm": {
        "model_info": {
            "max_input_tokens": 3072,
            "max_output_tokens": 1024,
            "supports_vision": True,
            "supports_function_calling": True,
            "supports_reasoning": False,
        }
    },
    "llm": {"vision": True, "supports_tools": True, "supports_schema": True, "reasoning": False},
}


@pytest.mark.parametrize("name", FULL)
def test_a_configuration_has_the_limits_and_abilities_of_the_deployment(name: str) -> None:
    model = only(MODELS[name](read(name, text_of(name, PLAIN))))
    assert model == model | FULL[name]
    text_only = replace(PLAIN, images=False, tools=False, reasoning=True)
    assert only(MODELS[name](read(name, text_of(name, text_only)))) != model


def test_a_model_without_images_gets_no_image_and_no_request_with_one() -> None:
    blind = replace(PLAIN, images=False)
    assert "image_url" in text_of("curl", PLAIN)
    assert "image_url" not in text_of("curl", blind)
    opencode = read("opencode", text_of("opencode", blind))["provider"]["dflash"]["models"]["tiny"]
    assert (opencode["modalities"]["input"], opencode["attachment"]) == (["text"], False)
    assert "capabilities: [tool_use]\n" in text_of("continue", blind)


def test_curl_gets_the_certificate_that_it_must_trust() -> None:
    assert "--cacert" not in text_of("curl", PLAIN)
    text = text_of("curl", replace(PLAIN, root=Path("/home/my box/root.crt")))
    assert text.count("curl -sS --cacert '/home/my box/root.crt' http://") == 2


def test_a_note_to_hand_over_has_the_certificate_and_no_path_of_this_machine(tmp_path: Path) -> None:
    root = tmp_path / "root.crt"
    root.write_text("-----BEGIN CERTIFICATE-----\nmine\n-----END CERTIFICATE-----\n")
    place = replace(PLAIN, url="https://box", directory=str(tmp_path), root=root, key_name="alice")
    found = Connections(Redactor([]), place, clients(), True, Secret("k" * 32))
    for client in ("curl", "any", "opencode"):
        note = found.handover(client)
        assert root.read_text() in note
        assert str(tmp_path) not in note
    assert "--cacert dflash-root.crt" in found.handover("curl")


def test_a_context_below_the_first_request_and_its_answer_is_a_problem() -> None:
    codex, opencode = clients()["codex"], clients()["opencode"]
    assert problems_of(codex, PLAIN) == [
        "the context of 4096 tokens is too small: its first request has about 8900 tokens, and it keeps 1024 for an "
        f"answer ({codex.source})"
    ]
    # 7200 tokens and an answer of a quarter of the context
    assert len(problems_of(opencode, replace(PLAIN, context=8192))) == 1
    assert problems_of(opencode, replace(PLAIN, context=9600)) == []
    assert problems_of(codex, replace(PLAIN, context=32768)) == []
    assert problems_of(codex, replace(PLAIN, context=None)) == []
    assert all(client.source for client in clients().values() if client.request)


WRITTEN = [name for name, client in clients().items() if client.path]


def merge(name: str, old: str, place: EndpointFacts = PLAIN) -> str:
    return merged(clients()[name], Path("file"), old, text_of(name, place))


@pytest.mark.parametrize("name", WRITTEN)
def test_merging_twice_changes_nothing_more(name: str) -> None:
    once = merge(name, "")
    assert once == text_of(name, PLAIN)
    assert merge(name, once) == once


@pytest.mark.parametrize("name", WRITTEN)
def test_another_context_replaces_our_entry_and_nothing_else(name: str) -> None:
    again = merge(name, text_of(name, PLAIN), replace(PLAIN, images=False))
    assert read(name, again) == read(name, text_of(name, replace(PLAIN, images=False)))


@pytest.mark.parametrize(
    ("name", "old", "kept"),
    [
        ("opencode", '{"theme": "dark", "provider": {"mine": {}}}', ("theme", "provider.mine")),
        ("vscode", '[{"name": "mine", "vendor": "ollama"}]', ("0",)),
        ("continue", "name: mine\nversion: 2.0.0\nmodels:\n- name: x\n", ("name", "version", "models.0")),
        ("llm", "- model_id: x\n  model_name: y\n", ("0",)),
        ("codex", '# mine\nsandbox = "off"\n[model_providers.x]\nname = "x"\n', ("sandbox", "model_providers.x")),
    ],
)
def test_the_users_own_entries_stay(name: str, old: str, kept: tuple[str, ...]) -> None:
    before, after = read(name, old), read(name, merge(name, old))
    for place in kept:
        was, now = before, after
        for key in place.split("."):
            was, now = (one[int(key) if key.isdecimal() else key] for one in (was, now))
        assert now == was
    added = after if isinstance(after, list) else json.dumps(after)
    assert len(added) > len(before if isinstance(before, list) else json.dumps(before))


def test_comments_stay_in_toml() -> None:
    text = merge("codex", '# mine\nmodel = "gpt"\n\n[tools] # of mine\na = 1\n')
    assert "# mine" in text
    assert "[tools] # of mine" in text
    assert tomllib.loads(text)["model"] == "tiny"


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("zed", '// my settings\n{"theme": "x"}'),
        ("opencode", "{"),
        ("opencode", "[]"),
        ("opencode", '{"provider": []}'),
        ("continue", "models: [x"),
        ("codex", "model = "),
        ("codex", 'model_providers = { dflash = { name = "x" } }'),
    ],
)
def test_a_file_that_cannot_be_merged_is_refused(name: str, old: str) -> None:
    with pytest.raises(FileInvalid, match="file"):
        merge(name, old)
