"""What each key used is what the engine says, and streams stay as their client asked for them."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from dflash_deploy.client.metrics import KeyUsage
from dflash_deploy.serve.gateway.auth import DenyByDefault
from dflash_deploy.serve.gateway.body import parsed
from dflash_deploy.serve.gateway.metering import Asks
from dflash_deploy.serve.gateway.metering import asked as asks_for
from dflash_deploy.serve.gateway.streams import Stream, Strips, Tokens, tokens_of
from tests.support.metered import (
    BEGIN,
    CHAT,
    CHUNK,
    DETAILS,
    DONE,
    END,
    FINISH,
    KEYS,
    LAST,
    REASONED,
    REASONS,
    Engine,
    ask,
    asked,
    leave_after,
    stream_of,
    timed,
    used,
)

FIELD: TypeAdapter[bool | None] = TypeAdapter(bool | None)  # the type of `stream` in vLLM's requests

# What a client can write as `stream`.
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)


def test_an_answer_counts_as_it_says() -> None:
    answer = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}).encode()
    door = DenyByDefault(Engine([answer[:20], answer[20:]]), KEYS)
    assert ask(door)[:2] == (200, answer)
    assert used(door) == KeyUsage("alice", {"200": 1}, 7, 5, 0)


def test_a_stream_counts_and_its_client_sees_nothing_of_it() -> None:
    engine = Engine([CHUNK, CHUNK, DONE], b"text/event-stream")
    door = DenyByDefault(engine, KEYS)
    status, text, _ = ask(door, stream_of())
    assert (status, text) == (200, CHUNK + CHUNK + DONE)
    assert engine.headers[0][b"content-length"] == str(len(engine.bodies[0])).encode()
    assert used(door) == KeyUsage("alice", {"200": 1}, 7, 5, 0)


@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": False}])
def test_a_client_that_asks_gets_its_usage(options: dict[str, bool]) -> None:
    engine = Engine([CHUNK, DONE], b"text/event-stream")
    assert ask(DenyByDefault(engine, KEYS), stream_of(stream_options=options))[1] == CHUNK + LAST + DONE
    assert json.loads(engine.bodies[0])["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (
            b'{"stream":true, "n": 1.50, "stream_options" : {"include_usage":true}}',
            b'{"stream":true, "n": 1.50, "stream_options" : {"continuous_usage_stats":true,"include_usage":true}}',
        ),
        (
            b'{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}',
            b'{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}',
        ),
        (
            b'{"stream":true,"x":{"stream_options":{}},"stream_options":{"include_usage":true}}',
            b'{"stream": true, "x": {"stream_options": {}}, "stream_options": {"include_usage": true, '
            b'"continuous_usage_stats": true}}',
        ),
    ],
)
def test_the_usage_of_each_chunk_is_asked_for(body: bytes, sent: bytes) -> None:
    engine = Engine([CHUNK, DONE], b"text/event-stream")
    ask(DenyByDefault(engine, KEYS), body)
    assert engine.bodies == [sent]


@pytest.mark.parametrize("options", [{"include_usage": False}, {}, None])
def test_options_that_do_not_ask_are_completed(options: dict[str, bool] | None) -> None:
    engine = Engine([CHUNK, DONE], b"text/event-stream")
    assert ask(DenyByDefault(engine, KEYS), stream_of(stream_options=options))[1] == CHUNK + DONE
    assert json.loads(engine.bodies[0])["stream_options"]["include_usage"] is True


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"stream": false}',
        b'{"stream": "false"}',
        b'{"stream": 0}',
        b'{"stream": null}',
        b'{"strea\\u006d": false}',
        b'{"stream": true, "stream_options": 3}',
        b'["stream"]',
        b'{"messages": [{"content": "\\"stream\\": true"}]}',
    ],
)
def test_any_other_body_is_passed_on_as_it_is(body: bytes) -> None:
    engine = Engine([b"{}"])
    ask(DenyByDefault(engine, KEYS), [body[:3], body[3:]])
    assert engine.bodies == [body]


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream": "true"}',
        b'{"stream": "Yes"}',
        b'{"stream": 1}',
        b'{"stream": 1.0}',
        b'{"\\u0073tream": true}',
        b'\xef\xbb\xbf{"stream": true}',
        '{"stream": true}'.encode("utf-16"),
        '{"stream": true}'.encode("utf-32-be"),
        b'{"stream": 1, "stream_options": {"include_usage": false}}',
        b'{"stream": true, "x": {"stream_options": {}}, "stream_option\\u0073": {"include_usage": true}}',
    ],
)
@pytest.mark.parametrize("parser", ["", "qwen3"])
def test_every_body_that_the_engine_streams_counts(body: bytes, parser: str) -> None:
    engine = Engine([CHUNK, DONE], b"text/event-stream")
    door = DenyByDefault(engine, KEYS | {"REASONING_PARSER": parser})
    ask(door, body)
    assert json.loads(engine.bodies[0])["stream_options"]["include_usage"] is True
    assert json.loads(engine.bodies[0])["stream_options"].get("continuous_usage_stats", False) is (not parser)
    assert used(door) == KeyUsage("alice", {"200": 1}, 7, 5, 0)


@settings(max_examples=50)
@given(st.sampled_from(["1", "on", "T", "True", "y", "yes", "0", "off", "no", "", " true", "maybe"]) | VALUES)
def test_what_streams_is_what_the_engines_take_for_true(value: object) -> None:
    try:
        streams = FIELD.validate_python(value) is True
    except ValidationError:
        streams = False
    request = parsed(json.dumps({"stream": value}).encode())
    strips = asks_for(Asks.USAGE_IN_EACH_CHUNK, CHAT, request)
    assert (b"include_usage" in request.body, strips is Strips.USAGE) == (streams, streams)


def test_a_body_keeps_what_its_client_wrote() -> None:
    body = b'{ "stream":true, "n": 1.50, "a":"\xc3\xa4", "big": 123456789012345678901234567890}'
    engine = Engine([CHUNK, DONE], b"text/event-stream")
    ask(DenyByDefault(engine, KEYS), body)
    assert engine.bodies == [b'{"stream_options":{"include_usage":true,"continuous_usage_stats":true},' + body[1:]]


@given(st.data())
def test_a_stream_in_any_pieces_is_the_same_stream(data: st.DataObject) -> None:
    text = CHUNK + b": a comment\r\n\r\n" + CHUNK + LAST + DONE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    stream = Stream(Strips.USAGE)
    out = b"".join(stream.take(piece, more=number < len(pieces)) for number, piece in enumerate(pieces, 1))
    assert out == text.replace(LAST, b"")
    assert stream.tokens == Tokens(7, 5)


TEXTS = st.sampled_from(["a", "\n\n", "}}", '"finish_reason":null', ',"timings":{}}', '"choices":[{'])


@st.composite
def chunks_with(draw: st.DrawFn, field: str, count: str) -> dict[str, Any]:
    """A chunk of one of several answers: text or a call of a tool, with or without what it states in `field`."""
    called = [{"index": draw(st.integers(0, 2)), "function": {"arguments": draw(TEXTS)}}]
    delta = draw(st.sampled_from([{"content": draw(TEXTS)}, {"tool_calls": called}, {}]))
    finish = draw(st.sampled_from([None, None, None, "stop"]))
    choice = {"finish_reason": finish, "index": draw(st.sampled_from([0, 0, 1, 10, 12])), "delta": delta}
    stated = {field: {"prompt_n": 7, "prompt_tokens": 7, count: draw(st.integers(0, 99))}}
    begin, name = {"choices": [choice]}, {"id": draw(TEXTS)}
    return draw(st.sampled_from([begin | name | stated, begin | stated | name, begin | name]))


@pytest.mark.parametrize(
    ("strips", "field", "count"),
    [(Strips.TIMINGS, "timings", "predicted_n"), (Strips.USAGE, "usage", "completion_tokens")],
)
@settings(max_examples=50)
@given(data=st.data())
def test_what_was_asked_for_leaves_chunks_of_any_form_in_any_pieces(
    strips: Strips, field: str, count: str, data: st.DataObject
) -> None:
    chunks = data.draw(st.lists(chunks_with(field, count), max_size=5))
    marks = st.sampled_from([(",", ":"), (",", ":"), (", ", ": ")])
    ends = st.sampled_from(["\n\n", "\n\n", "\r\n\r\n"])
    events = [f"data: {json.dumps(one, separators=data.draw(marks))}{data.draw(ends)}".encode() for one in chunks]
    cuts = data.draw(st.none() | st.lists(st.integers(0, sum(map(len, events))), max_size=4).map(sorted))
    pieces = events if cuts is None else [b"".join(events)[begin:end] for begin, end in pairwise([0, *cuts, None])]
    stream, generated = Stream(strips), {}
    seen = b"".join(stream.take(piece, more=True) for piece in pieces) + stream.take(b"", more=False)
    for chunk in chunks:
        (choice,) = chunk["choices"]
        if field in chunk:
            generated[choice["index"]] = chunk[field][count]
        if strips is Strips.USAGE or choice["finish_reason"] is None:
            chunk.pop(field, None)
    assert [json.loads(line[5:]) for line in seen.splitlines() if line] == chunks
    assert not generated or stream.tokens == Tokens(7, sum(generated.values()))


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}, Tokens(3, 4)),
        ({"usage": {"input_tokens": 3, "output_tokens": 4}}, Tokens(3, 4)),
        ({"usage": {"prompt_tokens": 3, "total_tokens": 3}}, Tokens(3, 0)),
        ({"usage": {"prompt_tokens": -3, "completion_tokens": True}}, Tokens(0, 0)),
        ({"type": "response.completed", "response": {"usage": {"input_tokens": 3, "output_tokens": 4}}}, Tokens(3, 4)),
        ({"timings": {"prompt_n": 2, "cache_n": 1, "predicted_n": 4}}, Tokens(3, 4)),
        (
            {"usage": {"input_tokens": 3, "cache_read_input_tokens": 19, "cache_creation_input_tokens": 1}},
            Tokens(23, 0),
        ),
        (
            [{"timings": {"prompt_n": 2, "predicted_n": 4}}, {"timings": {"prompt_n": 3, "predicted_n": 5}}],
            Tokens(5, 9),
        ),
        ({"usage": None}, None),
        ([1], None),
    ],
)
def test_each_engines_words_for_its_tokens(answer: object, tokens: Tokens | None) -> None:
    assert tokens_of(json.dumps(answer).encode()) == tokens


def test_anthropics_stream_says_it_in_two_events() -> None:
    stream = Stream()
    stream.take(
        b'data: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":0}}}\n\n', more=True
    )
    stream.take(b'data: {"type":"message_delta","usage":{"output_tokens":6}}\n\n', more=False)
    assert stream.tokens == Tokens(9, 6)


def test_a_client_that_leaves_is_counted_as_cancelled() -> None:
    async def leave() -> None:
        request = asyncio.create_task(asked(door))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    door = DenyByDefault(Engine([b"{}"], gate=asyncio.Event()), KEYS)
    asyncio.run(leave())
    assert used(door) == KeyUsage("alice", {"cancelled": 1}, 0, 0, 0)


def test_a_stream_that_its_client_leaves_counts_as_far_as_it_came() -> None:
    door = DenyByDefault(Engine([CHUNK, CHUNK, CHUNK, DONE], b"text/event-stream"), KEYS)
    assert asyncio.run(leave_after(door, 2, stream_of())) == [CHUNK, CHUNK]
    assert used(door) == KeyUsage("alice", {"cancelled": 1}, 7, 2, 0)


def test_with_a_reasoning_parser_vllm_states_the_usage_of_a_chat_once() -> None:
    engine = Engine([BEGIN, *REASONED, FINISH, END, DONE], b"text/event-stream", states=False)
    door = DenyByDefault(engine, REASONS)
    assert ask(door, stream_of())[1] == BEGIN + b"".join(REASONED) + FINISH + DONE
    assert json.loads(engine.bodies[0])["stream_options"] == {"include_usage": True}
    assert used(door) == KeyUsage("alice", {"200": 1}, 7, 22, 0)


@pytest.mark.parametrize(
    ("options", "stays"),
    [
        ({"include_usage": True}, True),
        ({"include_usage": 1, "continuous_usage_stats": True}, True),
        ({"include_usage": False, "continuous_usage_stats": True}, False),
    ],
)
def test_a_client_decides_whether_each_chunk_has_its_usage(options: dict[str, object], stays: bool) -> None:
    engine = Engine([BEGIN, END, DONE], b"text/event-stream", states=False)
    body = stream_of(stream_options=options)
    assert ask(DenyByDefault(engine, REASONS), body)[1] == BEGIN + (END if stays else b"") + DONE
    asked_for = {"include_usage": True, "continuous_usage_stats": False}
    assert engine.bodies[0] == body if stays else json.loads(engine.bodies[0])["stream_options"] == asked_for


@pytest.mark.parametrize(("sent", "generated"), [(1, 0), (2, 1), (6, 5), (7, 5)])
def test_each_chunk_of_a_cut_chat_is_at_least_one_token(sent: int, generated: int) -> None:
    chunks = [BEGIN, *REASONED, FINISH]
    door = DenyByDefault(Engine([*chunks, END, DONE], b"text/event-stream", states=False), REASONS)
    assert asyncio.run(leave_after(door, sent, stream_of())) == chunks[:sent]
    assert used(door) == KeyUsage("alice", {"cancelled": 1}, 0, generated, 0)


def test_completions_have_no_reasoning_parser() -> None:
    engine = Engine([CHUNK, CHUNK, DONE], b"text/event-stream")
    door = DenyByDefault(engine, REASONS)
    asyncio.run(leave_after(door, 2, stream_of(), "/v1/completions"))
    assert json.loads(engine.bodies[0])["stream_options"]["continuous_usage_stats"] is True
    assert used(door) == KeyUsage("alice", {"cancelled": 1}, 7, 2, 0)


def test_the_usage_of_each_chunk_leaves_no_trace_in_it() -> None:
    stream = Stream(Strips.USAGE)
    for number, chunk in enumerate([BEGIN, *REASONED, FINISH]):
        usage = b',"usage":{' + DETAILS % (7 + 3 * number, 3 * number) + b"}}\n\n"
        assert stream.take(chunk.removesuffix(b"}\n\n") + usage, more=True) == chunk
        assert stream.tokens == Tokens(7, 3 * number)
    assert stream.take(END + DONE, more=False) == DONE
    assert stream.tokens == Tokens(7, 22)


def test_llama_cpp_is_asked_for_the_timings_of_each_chunk() -> None:
    last = timed(2, finish=b'"stop"')
    engine = Engine([timed(1), timed(1) + timed(2), last, DONE], b"text/event-stream")
    door = DenyByDefault(engine, KEYS, asks=Asks.TIMINGS)
    without = timed(1)[: timed(1).rindex(b',"timings"')] + b"}\n\n"
    assert ask(door, stream_of())[1] == without * 3 + last + DONE
    assert used(door) == KeyUsage("alice", {"200": 1}, 7, 2, 0)
    assert json.loads(engine.bodies[0])["timings_per_token"] is True
    wanted = stream_of(timings_per_token=True)
    assert ask(door, wanted)[1] == timed(1) * 2 + timed(2) + last + DONE
    assert engine.bodies[-1] == wanted


def test_each_of_several_answers_of_a_stream_counts() -> None:
    stream = Stream(Strips.TIMINGS)
    for event in (timed(3, index=0), timed(5, index=1), timed(4, index=0), timed(6, index=1)):
        stream.take(event, more=True)
    assert stream.tokens == Tokens(7, 10)
    # llama.cpp states each of them in an event of its own
    whole = Stream()
    whole.take(LAST + LAST, more=False)
    assert whole.tokens == Tokens(7, 10)
