"""Recipes in every form become the same list of what they set, and nothing of them is run."""

import time
from contextlib import suppress
from pathlib import Path

import pytest

from dflash_deploy.foreign.forms import MOST_CHARACTERS, read_recipe
from dflash_deploy.foreign.items import ForeignRecipe, RecipeItem, RecipeRefused, SeveralEngines

WANTED = {"--model": "o/M", "--max-model-len": "4096", "--served-model-name": "a b"}

FORMS = {
    "a line": "vllm serve o/M --max-model-len 4096 --served-model-name a b",
    "equals and underscores": "vllm serve o/M --max_model_len=4096 --served_model_name a b",
    "continued": "vllm serve o/M \\\n  --max-model-len 4096 \\\n  --served-model-name a b\n",
    "a blank after the backslash": "vllm serve o/M \\ \n  --max-model-len 4096 \\ \n  --served-model-name a b\n",
    "backslashes escaped": "vllm serve o/M \\\\\n  --max-model-len 4096 \\\\\n  --served-model-name a b\n",
    "backslashes lost": "vllm serve o/M\n--max-model-len 4096\n--served-model-name a b\n",
    "line ends lost": "vllm serve o/M \\ --max-model-len 4096 \\ --served-model-name a b",
    "comment between": "vllm serve o/M \\\n  --max-model-len 4096 \\\n#  --seed 1\n  --served-model-name a b\n",
    "variables": 'M=o/M\nLEN="${LEN:-4096}"\nvllm serve "$M" --max-model-len ${LEN} --served-model-name a b',
    "an array": 'ARGS=(--max-model-len 4096 # long\n  --served-model-name a b)\nexec vllm serve o/M "${ARGS[@]}"',
    "an array that grows": 'A=(vllm serve)\nA+=(o/M --max-model-len 4096)\n"${A[@]}" --served-model-name a b',
    "words of a variable": "F='--max-model-len 4096'\nvllm serve o/M $F --served-model-name a b",
    "logic that decides nothing": 'if [ ! -d x ]; then mkdir x; fi\nvllm serve o/M --max-model-len 4096 --served-model-name a b "$@"',
    "prefixes": "$ sudo nohup env A=1 vllm serve o/M --max-model-len 4096 --served-model-name a b > log 2>&1 &",
    "the old module": "python3.11 -m vllm.entrypoints.openai.api_server --model o/M --max-model-len 4096 --served-model-name a b",
    "docker run": "docker run --rm -it --gpus all -p 80:8000 vllm/vllm-openai:v1 --model o/M --max-model-len 4096 --served-model-name a b",
    "docker run, flattened": "docker run -d\n--gpus all\nvllm/vllm-openai:v1\no/M\n--max-model-len 4096\n--served-model-name a b",
    "an entry point": "docker run --entrypoint vllm x/y:z serve o/M --max-model-len 4096 --served-model-name a b",
    "bash inside": "docker run x/y:z bash -lc 'cd /x && vllm serve o/M --max-model-len 4096 --served-model-name a b'",
    "docker exec": "docker exec -it name vllm serve o/M --max-model-len 4096 --served-model-name a b",
    "compose exec": "docker compose exec -T vllm serve o/M --max-model-len 4096 --served-model-name a b",
    "Compose, words": "services:\n  x: {image: redis}\n  e:\n    image: vllm/vllm-openai:v1\n    command: [--model, o/M, --max-model-len, '4096', --served-model-name, a, b]\n",
    "Compose, text": "services:\n  e:\n    image: vllm/vllm-openai\n    command: >\n      --model ${M:-o/M}\n      --max-model-len 4096 --served-model-name a b\n",
    "Compose, script": 'services:\n  e:\n    image: i\n    entrypoint: [bash, -c, \'exec vllm serve "$$@"\', --]\n    command: [o/M, --max-model-len, "4096", --served-model-name, a, b]\n',
    "a pod": "kind: Service\n---\nkind: Deployment\nspec: {template: {spec: {containers: [{name: v, image: vllm/vllm-openai:v1, args: [--model=o/M, --max-model-len=4096, --served-model-name, a, b]}]}}}\n",
    "sparkrun": "recipe_version: '1'\nmodel: o/M\ncontainer: c\ndefaults: {n: 4096}\ncommand: |\n  vllm serve {model} \\\n    --max-model-len {n} --served-model-name a b\n",
    "sparkrun without a command": "runtime: vllm\nmodel: o/M\ndefaults: {max_model_len: 4096, served_model_name: a b, x: false}\n",
}  # fmt: skip


def arguments(recipe: ForeignRecipe) -> dict[str, str]:
    return {item.name: item.value for item in recipe.items if item.kind == "argument"}


def items(text: str) -> dict[str, RecipeItem]:
    return {item.name: item for item in read_recipe(text).items}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_says_the_same(form: str) -> None:
    found = read_recipe(FORMS[form])
    assert arguments(found) == WANTED
    assert found.engines == ("vllm",)


def test_other_engines_and_their_programs() -> None:
    sglang = read_recipe("python -m sglang.launch_server --model-path o/M --tp 2")
    assert (sglang.engines, arguments(sglang)) == (("sglang",), {"--model-path": "o/M", "--tp": "2"})
    llama = read_recipe("./build/bin/llama-server.exe -m x.gguf -fa on --temp -0.5")
    assert "llamacpp" in llama.engines
    assert arguments(llama) == {"-m": "x.gguf", "-fa": "on", "--temp": "-0.5"}


def test_json_becomes_one_item_for_each_key() -> None:
    found = arguments(
        read_recipe(
            """vllm serve o/M -x '{"a": {"b": 1}, "c": [1, 2], "d": true}' --limit-mm-per-prompt image=4,video=0"""
        )
    )
    assert found["-x.a.b"] == "1"
    assert found["-x.c"] == "[1,2]"
    assert found["-x.d"] == "true"
    assert found["--limit-mm-per-prompt.image"] == "4"


def test_lines_are_those_of_the_recipe() -> None:
    found = items("# a\nX=1\n\nvllm serve o/M \\\n  --max-model-len 1 \\\n  --seed 2\n")
    assert (found["--model"].line, found["--max-model-len"].line, found["--seed"].line) == (4, 5, 6)


def test_commands_and_substitutions_stay_as_they_are(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    found = items(
        f"docker rm -f $(docker ps -aq)\n`touch {mark}`\nX=$(touch {mark})\ncat <<EOF\n$(touch {mark})\nvllm serve wrong\nEOF\n"
        f"vllm serve o/M --seed $(touch {mark}) --dtype \"$X\" --port ${{PORT}} --name $HOME"
    )  # fmt: skip
    assert not mark.exists()
    assert found["docker"].value == "docker rm -f $(docker ps -aq)"
    assert found["--seed"].unset == f"$(touch {mark})"
    assert found["--dtype"].unset == f"$(touch {mark})"
    assert (found["--port"].unset, found["--name"].value) == ("$PORT", "~")


def test_a_variable_of_this_process_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "value")
    assert items("vllm serve o/M --seed $SECRET_OF_MINE")["--seed"].value == "$SECRET_OF_MINE"
    compose = "services: {e: {image: vllm/vllm-openai, command: '--model o/M --seed ${SECRET_OF_MINE}', environment: [SECRET_OF_MINE]}}"
    found = items(compose)
    assert found["--seed"].unset
    assert found["SECRET_OF_MINE"].unset


def test_what_is_not_taken_is_listed() -> None:
    script = "echo hi\necho ho\nvllm serve o/M $F\nvllm serve o/N\n"
    found = items(script)
    assert found["another engine"].value == "vllm serve o/N"
    assert found["echo"].value == "echo hi (and 1 more)"
    compose = "services:\n  db: {image: redis}\n  a: {image: vllm/vllm-openai, command: o/M}\n  b: {image: vllm/vllm-openai, command: o/N}\n"
    with pytest.raises(SeveralEngines) as several:
        read_recipe(compose)
    assert several.value.names == ("a", "b")
    chosen = {item.name: item for item in read_recipe(compose, "b").items}
    assert (chosen["--service"].value, chosen["--model"].value) == ("db", "o/N")
    with pytest.raises(RecipeRefused, match="no service `db` with an engine"):
        read_recipe(compose, "db")
    elsewhere = items("docker run -v /a:/b vllm/vllm-openai:v1 bash /start.sh")
    assert elsewhere["another file"].value == "bash /start.sh"
    assert elsewhere["--volume"].value == "/a:/b"


def test_a_file_of_variables() -> None:
    found = read_recipe("# a\nMAX_MODEL_LEN=4096\nexport A='b c'  # d\nX=${MAX_MODEL_LEN}\nNAMES=a b\n")
    assert [(item.name, item.value, item.line) for item in found.items] == [
        ("MAX_MODEL_LEN", "4096", 2),
        ("A", "b c", 3),
        ("X", "4096", 4),
        ("NAMES", "a b", 5),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm serve o/M 'a", "line 1: a quote or bracket is opened"),
        ("vllm serve $(a", "is opened and never closed"),
        ("vllm serve o/M\0", "NUL"),
        ("echo hello", "starts no engine"),
        ("", "starts no engine"),
        ("services: [a\n  b", "not valid YAML"),
        ("services: &a [*a]", "alias inside its own value"),
        ("x" * (MOST_CHARACTERS + 1), "too large"),
        ("bash -c '" * 3 + "vllm serve", "never closed"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(RecipeRefused) as refusal:
        read_recipe(text)
    assert said in refusal.value.message
    assert refusal.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "A=$A$A$A$A\n" * 2000,
        'A="${A:-' * 2000,
        "X=xxxxxxxx\n" + "X=$X$X$X$X\n" * 12 + "vllm serve $X",
        "((((((" * 20000,
        "vllm serve " + "\\\n" * 100000,
        "a=(" * 20000,
        "@echo off\nset A=" + " " * 10**6 + "x\nllama-server -m x ^\n" + " " * 10**4 + "-c 1",
        "$a = 'x'\n" + "& " * 300_000 + "`\n@(" * 10_000,
        "](" * 100_000,
        "docker\n" * 20_000,
        "cat << E\n" * 50_000,
    ],
)
def test_hostile_texts_end_soon(text: str) -> None:
    began = time.process_time()
    with suppress(RecipeRefused):
        read_recipe(text)
    assert time.process_time() - began < 3


def test_the_long_forms_of_ports_mounts_and_variables() -> None:
    pod = (
        "kind: List\nitems:\n- kind: Pod\n  spec:\n    hostNetwork: true\n    containers:\n    - name: v\n"
        "      image: vllm/vllm-openai:v1\n      args: [/m]\n      ports: [{containerPort: 8000}]\n"
        "      volumeMounts: [{name: weights, mountPath: /m}]\n"
        "      env: [{name: A, value: 1}, {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}]\n"
    )
    found = items(pod)
    assert (found["--network"].value, found["--volume"].value, found["--publish"].value) == (
        "host",
        "weights:/m",
        "8000:",
    )
    assert (found["A"].value, found["HF_TOKEN"].unset) == ("1", "$HF_TOKEN")
    compose = (
        "services:\n  e:\n    image: vllm/vllm-openai\n    command: /m\n    ports: [{target: 8000, published: 9000}]\n"
        "    volumes: [{type: bind, source: /w, target: /m}]\n"
    )
    found = items(compose)
    assert (found["--volume"].value, found["--publish"].value) == ("/w:/m", "9000:8000")
    run = "docker run --mount type=bind,source=/w,target=/m vllm/vllm-openai:v1 --model /m"
    assert read_recipe(run).mounts == read_recipe(compose).mounts == {"/m": "/w"}


def test_commands_within_commands_end() -> None:
    text = "vllm serve o/M"
    for _ in range(6):
        text = "docker exec x " + text
    with pytest.raises(RecipeRefused, match="nested too deep"):
        read_recipe(text)
