"""Where prompts come from."""

from pathlib import Path

import pytest

from dflash_deploy.bench.sweep import lengthened
from dflash_deploy.bench.workload import PACKAGED, Limits, choose, from_file, packaged
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.errors import BadInput

TINY, BIG = (load_catalog().pair(name) for name in ("tiny", "qwen3.5-27b-fp8"))


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_workload_has_ten_to_twenty_different_prompts(name: str) -> None:
    bodies = packaged(name).bodies("m", Limits(max_tokens=99, temperature=0.5, thinking=True))
    assert 10 <= len(bodies) <= 20
    assert len({str(body["messages"]) for body in bodies}) == len(bodies)
    for body in bodies:
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 99, 0.5)
        assert body["chat_template_kwargs"] == {"enable_thinking": True}


def test_only_vision_sends_images() -> None:
    with_images = {name for name in PACKAGED if "image_url" in str(packaged(name).bodies("m", Limits()))}
    assert with_images == {"vision"}


def test_without_a_wish_a_pair_gets_what_it_can_answer() -> None:
    assert [one.name for one in choose([], None, TINY)] == ["own"]
    assert [one.name for one in choose([], None, BIG)] == ["code", "chat"]
    assert [one.name for one in choose([], None, None)] == ["code", "chat"]
    assert [one.name for one in choose(["all"], None, BIG)] == list(PACKAGED)


def test_the_pairs_own_prompts_keep_their_length() -> None:
    bodies = choose(["own"], None, TINY)[0].bodies("tiny", Limits(max_tokens=1))
    assert len(bodies) == 29
    assert min(int(str(body["max_tokens"])) for body in bodies) > 90


@pytest.mark.parametrize(("name", "pair"), [("own", BIG), ("own", None), ("coed", TINY)])
def test_a_workload_that_is_not_there_is_refused(name: str, pair: object) -> None:
    with pytest.raises(BadInput):
        choose([name], None, pair)  # type: ignore[arg-type]


def test_a_file_of_prompts_and_conversations(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(
        '{"prompt": "One?", "output_tokens": 7}\n\n'
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Two?"}], "max_tokens": 5}\n'
    )
    first, second = from_file(file).bodies("m", Limits(max_tokens=9))
    assert first["messages"] == [{"role": "user", "content": "One?"}]
    assert (first["max_tokens"], second["max_tokens"]) == (9, 5)
    assert [one.name for one in choose([], file, TINY)] == ["mine"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"prompt": "a"}\n{"prompt": 3}\n', "line 2: prompt"),
        ('{"question": "a"}\n', "line 1"),
        ('{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}\n', "line 1"),
        ('{"prompt": "a"\n', "line 1"),
        ('["a"]\n', "line 1"),
        ('{"prompt": "a", "max_tokens": 0}\n', "max_tokens"),
        ("\n", "holds no prompt"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(text)
    with pytest.raises(BadInput, match=says):
        from_file(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        from_file(tmp_path / "nothing.jsonl")


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/urandom", "/", "/proc/self/mem"])
def test_what_is_no_file_of_prompts_is_refused_at_once(place: str) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        from_file(Path(place))


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"prompt": "a", "max_tokens": ' + "9" * 5000 + "}",
        '{"prompt": "a", "picture": {"rgb": [1, 2, 999], "width": 1, "height": 1}}',
        '{"prompt": "a", "picture": {"rgb": [1, 2, 3], "width": 1000000, "height": 1000000}}',
        '{"prompt": NaN}',
        "null",
        "[]",
    ],
)
def test_a_hostile_line_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n' + line)
    with pytest.raises(BadInput, match="line 2: ") as refusal:
        from_file(tmp_path / "prompts.jsonl")
    assert len(refusal.value.message) < 600


def test_a_conversation_stands_before_a_prompt_and_after_its_system_message() -> None:
    system, ask = {"role": "system", "content": "Be short."}, {"role": "user", "content": "Why?"}
    body = {"model": "m", "max_tokens": 8, "messages": [system, ask]}
    longer = lengthened(body, "a file")
    assert longer["messages"] == [
        system,
        {"role": "user", "content": "a file"},
        {"role": "assistant", "content": "I have read it."},
        ask,
    ]
    assert {**longer, "messages": body["messages"]} == body
    without = lengthened({"messages": [ask]}, "a file")["messages"]
    assert isinstance(without, list)
    assert (len(without), without[-1]) == (3, ask)
