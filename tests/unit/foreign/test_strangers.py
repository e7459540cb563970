"""A recipe of a stranger is judged by what it sets, in whatever spelling and form; nothing of that gets into `.env`."""

import shlex

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.foreign.forms import read_recipe
from dflash_deploy.foreign.items import RecipeRefused
from dflash_deploy.foreign.mapping import MOST_ITEMS, Translated, Translator

SERVE = "vllm serve Qwen/Qwen3.5-27B-FP8 "

ENV = """\
DFLASH_PAIR=qwen3.5-27b-fp8
DFLASH_ENGINE=vllm-0.33
"""


def translated(recipe: str) -> tuple[Translator, list[Translated]]:
    catalog = load_catalog()
    made = Translator(read_recipe(recipe), catalog.engines["vllm-0.33"], catalog.pairs["qwen3.5-27b-fp8"], catalog)
    return made, [row for row in made.rows() if row.fate == "dangerous"]


@pytest.mark.parametrize(
    "line",
    [
        "DFLASH_BIND=0.0.0.0",
        "DFLASH_BIND=::",
        "DFLASH_BIND=10.0.0.7",
        "TRUST_REMOTE_CODE=true",
        "ALLOWED_MEDIA_DOMAINS=169.254.169.254",
        "ALLOWED_MEDIA_DOMAINS=all",
        "ALLOWED_ORIGINS=https://evil.example",
        "OTLP_TRACES_ENDPOINT=http://evil.example:4317",
        "DFLASH_BASE_IMAGE=evil.example/x:1",
        "DFLASH_IMAGE=evil.example/x:1",
        "DFLASH_DOMAIN=box.example.com",
        "EXTRA_ARGS=--tool-parser-plugin /mnt/e.py",
        "EXTRA_ARGS=--trust-remote-code",
        "EXTRA_ARGS=--worker-cl evil.Worker",
        "HF_ENDPOINT=http://evil.example",
        "HF_ENDPOINT=https://evil.example",
        "VLLM_PLUGINS=evil",
        "VLLM_ALLOW_INSECURE_SERIALIZATION=1",
        "VLLM_SERVER_DEV_MODE=1",
        "CUDA_HOME=/tmp/evil",
        "TRITON_PTXAS_PATH=/tmp/evil.sh",
    ],
)
@pytest.mark.parametrize("form", ["env", "variable", "batch"])
def test_a_line_of_settings(line: str, form: str) -> None:
    name, _, value = line.partition("=")
    quoted = f"{name}={shlex.quote(value)}"
    forms = {"env": f"{ENV}{line}\n", "variable": f"{quoted} {SERVE}", "batch": f'@echo off\nset "{line}"\n{SERVE}'}
    made, dangerous = translated(forms[form])
    assert len(dangerous) == 1
    assert dangerous[0].why
    assert name not in made.settings
    assert value not in str(made.settings)


@pytest.mark.parametrize(
    "arguments",
    [
        "--hos 0.0.0.0",
        "--trust-rem",
        "--tool-parser-plugi /mnt/evil.py",
        "--reasoning-parser-plug /mnt/evil.py",
        "--logits-proc evil.Processor",
        "--allowed-local-media /",
        '--kv-transfer-config \'{"kv_connector": "X", "kv_connector_module_path": "evil.mod"}\'',
        '--compilation-config \'{"backend": "os.system"}\'',
        "--allowed-media-dom 169.254.169.254",
        "--config /tmp/evil.yaml",
    ],
)
def test_an_argument_also_abbreviated(arguments: str) -> None:
    made, dangerous = translated(SERVE + arguments)
    assert len(dangerous) == 1
    for word in ("evil", "0.0.0.0", "169.254", "os.system"):
        assert word not in str(made.settings)
    # it is listed as it was written
    assert dangerous[0].name.partition(".")[0] == arguments.split(maxsplit=1)[0]


@pytest.mark.parametrize(
    "line",
    [
        "DFLASH_BIND=127.0.0.1",
        "DFLASH_BIND=localhost",
        "TRUST_REMOTE_CODE=off",
        "EXTRA_ARGS=--enable-chunked-prefill --seed 3",
        "NCCL_DEBUG=INFO",
        "VLLM_USE_FLASHINFER_SAMPLER=1",
    ],
)
def test_what_is_harmless_is_taken_over_as_before(line: str) -> None:
    assert translated(f"{ENV}{line}\n")[1] == []


def test_more_items_than_any_recipe_has_are_refused() -> None:
    with pytest.raises(RecipeRefused, match=f"limit: {MOST_ITEMS}"):
        translated(SERVE + " ".join(f"--option-{number} 1" for number in range(MOST_ITEMS + 1)))
    many = " ".join(f"--option-{number}" for number in range(MOST_ITEMS + 1))
    with pytest.raises(RecipeRefused, match=f"limit: {MOST_ITEMS}"):
        translated(f"{ENV}EXTRA_ARGS='{many}'\n")
