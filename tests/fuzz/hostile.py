"""Strategies that make hostile documents from valid ones: other values, other bytes, other encodings."""

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

# An API key, as `init` generates them. No output may contain it.
SECRET = "q7Zt3WmXv9Rb2KdLh8Ns5PfYc4Gj6Ua1Eo0Ti-Vx_Bq"

# Texts in place of a JSON value; some are JSON, some are not.
RAW: tuple[str, ...] = (
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "1E400",
        "0.1e-999",
        "-0",
        "-0.0",
        "01",
        "1.",
        ".5",
        "+1",
        "0x10",
    ),
    *("9" * 400, "-" + "9" * 5000, str(2**31), str(2**53), str(2**63), str(-(2**63) - 1), str(2**64), str(2**64 - 1)),
    *(
        '"\\ud800"',
        '"\\u0000"',
        '"\\udc00\\ud800"',
        "nul",
        "True",
        "undefined",
        "'x'",
        "[" * 300,
        '{"a":' * 300,
        "/* */1",
    ),
    *("[" * 100 + "]" * 100, "[" * 199 + "]" * 199, '{"a":' * 150 + "1" + "}" * 150, "1 2", "[1,]", "{,}"),
)

# Texts that parsers and messages trip over.
TEXTS: tuple[str, ...] = (
    *(
        "",
        " ",
        "\t",
        "\n",
        "\0",
        "a\0b",
        "\x1b[31mred",
        "\x1b]0;title\x07",
        "\r\nx",
        "\u2028",
        "\u202etxt.exe",
        "\ufeff",
    ),
    *(
        "\x85",
        "\x9b31m",
        "é",
        "中文",
        "😀",
        "\ufffd",
        "\U0010ffff",
        "x" * 300,
        "x" * 5000,
        "/" * 300,
        "../../etc/passwd",
    ),
    *(
        "/etc/passwd",
        "~",
        "~root",
        "~nobody-of-that-name/x",
        ".",
        "..",
        "/",
        "//",
        "-",
        "--help",
        "-1",
        "0",
        "1e5",
        "1_000",
    ),
    *(
        "nan",
        "inf",
        "-inf",
        "True",
        "null",
        "none",
        "off",
        "auto",
        "=",
        "a=b",
        "$HOME",
        "${X}",
        "$(id)",
        "`id`",
        "%s%n",
        "{0}",
    ),
    *(
        "{x}",
        "{{",
        "[bold]x[/bold]",
        "[/]",
        "http://",
        "http://[",
        "http://[::1",
        "http://u:hunter2@h",
        "://",
        "a b",
        "a,b",
        ",,",
    ),
    *(
        "'",
        '"',
        "'''",
        '"""',
        "\\",
        "\\n",
        "\\x",
        "#",
        " #x",
        "²",
        "٣",
        "\uff11\uff12",
        "9" * 30,
        "9" * 5000,
        "-" * 50,
        "*",
        "?",
        "[",
        "(",
    ),
)

# Bytes that are put into a document.
BYTES: tuple[bytes, ...] = (
    *(b"", b"\0", b"\0" * 100, b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xc3(", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
    *(b"\r", b"\n" * 50, b"\r\n", b"\x1b[2J", b"\x7f", b"\x80", b"\x85", b"\xe2\x80\xa8", b"[" * 1000, b"{" * 1000),
    *(
        b'"',
        b"'",
        b"\\",
        b",",
        b":",
        b"}",
        b"]",
        b"- ",
        b"  ",
        b"\t",
        b" " * 2000,
        b"&a ",
        b"*a",
        b"!!python/object:os.system ",
    ),
    *(
        b"<<: *a\n",
        b"? ",
        b"| \n",
        b"> ",
        b"---\n",
        b"...\n",
        b"%YAML 9.9\n",
        b"data: ",
        b"data:[DONE]",
        b"event: x\n",
        b"=",
        b"#",
    ),
    *(
        b"9" * 400,
        b"-1",
        b"1e999",
        b"NaN",
        b"null",
        b"\xff" * 8,
        b"\x7f" + b"\xff" * 7,
        b"\0\0\0\0\0\0\0\x80",
        b"export ",
    ),
)


@cache
def values(depth: int = 2) -> st.SearchStrategy[Any]:
    """A JSON value, of which some are `Raw` texts."""
    plain: st.SearchStrategy[Any] = st.one_of(
        st.sampled_from([None, True, False, 0, -1, 1, 1.5, -0.0, 10**6, 2**31, 2**53, 2**63, 1e308]),
        st.sampled_from(TEXTS),
        st.sampled_from(RAW).map(Raw),
        st.integers(),
        st.text(max_size=12),
    )
    if not depth:
        return plain
    inner = values(depth - 1)
    return st.one_of(
        plain,
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(TEXTS) | st.text(max_size=6), inner, max_size=3),
    )


class Raw(str):
    """A text that is written into JSON without quotes."""

    __slots__ = ()


def written(value: Any) -> bytes:
    """A value as JSON, with `Raw` texts as they are, and lone surrogates as escapes."""
    raws: list[str] = []

    def plain(node: Any) -> Any:
        if isinstance(node, Raw):
            raws.append(str(node))
            return f"@raw{len(raws) - 1}@"
        if isinstance(node, dict):
            return {key: plain(one) for key, one in node.items()}
        return [plain(one) for one in node] if isinstance(node, (list, tuple)) else node

    text = json.dumps(plain(value))
    return re.sub(r'"@raw(\d+)@"', lambda found: raws[int(found[1])], text).encode("utf-8", "surrogatepass")


_FEW = st.integers(1, 3)
_HOW = st.sampled_from(("value", "value", "value", "remove", "add", "repeat", "wrap"))
_TEXT = st.sampled_from(TEXTS)
_TIMES = st.sampled_from((2, 50, 1500))
_ANY = st.integers(0, 2**32)


@st.composite
def changed(draw: st.DrawFn, sample: Any) -> Any:
    """A copy of a JSON value with some of its parts replaced, removed, repeated or added."""
    whole = [json.loads(json.dumps(sample))]
    for _ in range(draw(_FEW)):
        place, key = _place(draw(_ANY), whole)
        what = draw(_HOW)
        if what == "remove" and place is not whole:
            del place[key]
        elif what == "add" and isinstance(place[key], dict):
            place[key][draw(_TEXT)] = draw(values(1))
        elif what == "repeat" and isinstance(place[key], list):
            place[key] = (place[key] or [None]) * draw(_TIMES)
        elif what == "wrap":
            place[key] = [{"a": place[key]}]
        else:
            place[key] = draw(values())
    return whole[0]


def _place(number: int, whole: list[Any]) -> tuple[Any, Any]:
    """A container inside a value and a key or an index of it, chosen by `number`."""
    place: Any = whole
    key: Any = 0
    while True:
        inner = place[key]
        number, stop = divmod(number, 5)
        if not isinstance(inner, (dict, list)) or not inner or stop == 4:
            return place, key
        number, chosen = divmod(number, len(inner))
        place, key = inner, list(inner)[chosen] if isinstance(inner, dict) else chosen


_MOST = st.integers(1, 4)
_LENGTH = st.sampled_from((0, 1, 2, 8, 40, 400))
_WAY = st.integers(0, 8)
_BYTES = st.sampled_from(BYTES)
_SOME = st.binary(min_size=1, max_size=4)
_CODEC = st.sampled_from(("utf-16", "utf-16-le", "utf-32", "utf-8-sig"))


@st.composite
def damaged(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """A document with some bytes cut, overwritten, doubled, inserted or in another encoding."""
    content = samples[draw(_ANY) % len(samples)]
    for _ in range(draw(_MOST)):
        at = draw(_ANY) % (len(content) + 1)
        to = min(len(content), at + draw(_LENGTH))
        match draw(_WAY):
            case 0:
                content = content[:at]
            case 1:
                content = content[at:]
            case 2:
                content = content[:at] + content[to:]
            case 3:
                content = content[:to] + content[at:]
            case 4:
                content = content[:at] + bytes(to - at) + content[to:]
            case 5:
                content = content[:at] + draw(_SOME) + content[to:]
            case 6:
                content = _encoded(content, draw(_CODEC))
            case _:
                content = content[:at] + draw(_BYTES) + content[to:]
    return content


def _encoded(content: bytes, name: str) -> bytes:
    return content.decode("utf-8", "replace").encode(name)


def json_documents(*samples: Any) -> st.SearchStrategy[bytes]:
    """Hostile JSON documents, made from valid values."""
    texts = [json.dumps(sample).encode() for sample in samples]
    return st.one_of(
        st.sampled_from(samples).flatmap(changed).map(written),
        st.sampled_from(samples).flatmap(changed).map(written),
        damaged(texts),
        values().map(written),
        st.sampled_from(BYTES),
        st.binary(max_size=40),
    )
