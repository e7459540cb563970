"""Files that people write: custom catalogs and prompts; and the engine's log with the patterns that search it."""

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from pydantic import BaseModel

from dflash_deploy.bench.workload import Limits, from_file
from dflash_deploy.catalog.failures import Failures
from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import Family
from dflash_deploy.catalog.read import read_entry, read_extended
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.diagnosis.diagnose import LogReader, ProcessEnd
from dflash_deploy.diagnosis.lines import LONGEST_LINE
from dflash_deploy.intake.parse import parse_packaged_yaml
from dflash_deploy.redact import Redactor, redact_by_shape
from dflash_deploy.runtime.log import read_page
from dflash_deploy.startup.progress import Phases, Step, message_of
from tests.fuzz.hostile import BYTES, TEXTS, changed, damaged, written
from tests.fuzz.kind import Kind
from tests.fuzz.places import put

FAILURES = {
    "failures": [
        {
            "id": "mine",
            "pattern": "out of (?P<what>\\w+)",
            "cause": "the {what} is used up",
            "do": "use less of {what}",
            "source": "seen here",
            "fix": {"MAX_NUM_SEQS": "half"},
            "versions": ">=0.24,<0.26",
            "exit_codes": [1],
        }
    ]
}
PROMPTS = (
    {"prompt": "Count from 1 to 40.", "max_tokens": 20},
    {"messages": [{"role": "user", "content": "hi"}]},
    {"prompt": "Which colour?", "picture": {"rgb": [255, 0, 0], "width": 8, "height": 8}},
)
LOG = """\
INFO 01-02 03:04:05 [core.py:1] Initializing a V1 LLM engine (v0.32.0)
(EngineCore pid=7) INFO 01-02 03:04:05 [loader.py:1] Loading safetensors shards:  50% Completed | 1/2 [00:01<00:01]
(EngineCore pid=7) ERROR 01-02 03:04:06 [core.py:2] EngineCore failed to start.
Traceback (most recent call last):
  File "/x/core.py", line 5, in run
    raise ValueError("no")
ValueError: To serve at least one request with the model's max seq len (8192), 2.0 GiB KV cache is needed
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
"""

# Lines that count, with `#` for a number.
COUNTS = (
    "shards: 50% Completed | #/4 [",
    "shards: 50% Completed | 3/# [",
    "Capturing CUDA graphs: 0%|   | #/# [",
    "Capturing batches: 0%|   | #/7 [",
    "#12 [engine #/8] RUN x",
    "Step #/19 : COPY a b",
)


_H100 = (resources.files("dflash_deploy.catalog") / "profiles" / "h100.yaml").read_text(encoding="utf-8")


def entry(folder: str, kind: type[BaseModel]) -> Callable[[bytes], object]:
    """A reader of one file of a custom catalog."""
    return lambda content: read_entry(put(f"{folder}/mine.yaml", content), kind)


def read_profile(content: bytes) -> object:
    """Read a profile of a custom catalog, which may extend the one that is packaged here."""
    file = put("profiles/mine.yaml", content)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "h100.yaml").write_text(_H100, encoding="utf-8")
        return list(read_extended(Path(folder), file.parent, Profile))


def packaged(folder: str, names: Sequence[str] = ()) -> list[Any]:
    """The named files of a folder of the packaged catalog, else its first three."""
    files = sorted((resources.files("dflash_deploy.catalog") / folder).iterdir(), key=lambda file: file.name)
    chosen = [file for file in files if (file.name in names if names else file.name.endswith(".yaml"))]
    return [parse_packaged_yaml(file.read_text(encoding="utf-8")) for file in chosen[:3]]


def yaml_documents(samples: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """Hostile YAML: JSON is YAML too, so it is made the same way; and damaged text in YAML's own style."""
    texts = [yaml.safe_dump(sample, allow_unicode=True).encode() for sample in samples]
    bombs = st.sampled_from(
        (
            b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
            b"d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e]\n",
            b"a: &a {x: 1}\nb: {<<: [*a, *a, *a]}\n",
            b"? {a: 1}\n: 2\n",
            b"? [a]\n: 2\n",
            b"&a [*a]",
            b"- " * 3000,
            b"name: 2024-13-45\ntitle: 1:1:1:1\n",
            b"name: !!binary aGk=\n",
            b"name: !!set {a}\n",
            b"a: 1\n---\nb: 2\n",
            b"name: 0b111111111111111111111111111111111111111111111111111111111111111111111111111\n",
            b"name: .nan\ntitle: 9e999\n",
            b"name: 190:20:30\n",
            b"name: =\n",
            b"name: |\n  " + b"x" * 5000,
        )
    )
    odd = st.sampled_from(samples).flatmap(changed)
    dumped = odd.map(
        lambda value: yaml.safe_dump(
            json.loads(json.dumps(value).encode("utf-8", "replace")), allow_unicode=True
        ).encode("utf-8", "replace")
    )
    return st.one_of(odd.map(written), odd.map(written), dumped, damaged(texts), bombs, st.sampled_from(BYTES))


def read_prompts(content: bytes) -> object:
    """Read a file of prompts, and make the body of each request."""
    workload = from_file(put("prompts.jsonl", content))
    return [json.dumps(body) for body in workload.bodies("m", Limits())]


@cache
def _phases() -> Sequence[Phases]:
    return [Phases(by) for by in ("compose", "vllm", "sglang", "llamacpp")]


def read_log(content: bytes) -> object:
    """Read an engine's log: page by page, for its phases, and for known failures."""
    page = read_page(put("engine.log", content), "", Redactor())
    reader = LogReader(load_catalog().failures, "vllm", "0.32.0")
    found = reader.read(page.lines, ProcessEnd(1), page.lines)
    if any(len(line) > LONGEST_LINE for line in found.lines):
        raise AssertionError("a line of evidence is too long")
    steps = [phases.after(page.lines, Step("")) for phases in _phases()]
    return (
        steps,
        reader.costs(page.lines),
        [message_of(line) for line in page.lines],
        redact_by_shape("\n".join(page.lines)),
    )


def search(content: bytes) -> object:
    """Search with a pattern of a custom catalog, in lines made of the pattern's own characters."""
    text = content.decode("utf-8", "replace")
    failure = {"id": "mine", "pattern": text, "cause": "it did not start", "do": "start it again", "source": "here"}
    file = put("failures.yaml", json.dumps({"failures": [failure]}).encode())
    read = read_entry(file, Failures).failures
    plain = sorted(set(re.sub(r"[\\()\[\]{}|*+?^$.:]", "", text)))[:8]
    lines = [one * LONGEST_LINE for one in plain] + ["".join(plain) * (LONGEST_LINE // max(len(plain), 1))]
    lines += [" " * LONGEST_LINE, "a0" * (LONGEST_LINE // 2), text * (LONGEST_LINE // max(len(text), 1))]
    lines += [
        f"{one * (LONGEST_LINE // 2)}{other * (LONGEST_LINE // 2)}"
        for one in plain[:4]
        for other in plain[:4]
        if one != other
    ]
    return LogReader(read, "vllm", "0.32.0").read(lines)


@st.composite
def patterns(draw: st.DrawFn) -> bytes:
    """Regular expressions: atoms, repeats, groups, alternatives, and flags."""
    atom = st.sampled_from(
        ("a", "b", "x", ".", r"\w", r"\d", r"\s", r"\S", "[ab]", "[^x]", "[a-z]", r"\.", r"\\", "é", "0", " ")
    )
    repeat = st.sampled_from(("", "", "", "*", "+", "?", "*?", "+?", "{2,}", "{0,99}", "{1,9}", "{3}", "++"))
    piece = st.tuples(atom, repeat).map("".join)
    words = st.lists(piece, min_size=1, max_size=5).map("".join)
    begin = st.sampled_from(("(", "(?:", "(?P<n>", "(?i:", "(?=", "(?!", "(?<=", "(?>", "(?#"))
    group = st.tuples(begin, words, st.sampled_from(("", "|", "|b", r"|\\", "|a+")), st.just(")"), repeat).map("".join)
    flags = draw(st.sampled_from(("", "", "", "", "(?i)", "(?s)", "(?x)", "(?m)", "^")))
    return (
        flags
        + "".join(draw(st.lists(words | group, min_size=1, max_size=4)))
        + draw(st.sampled_from(("", "x", "$", "c", "!")))
    ).encode()


def logs() -> st.SearchStrategy[bytes]:
    """Logs with odd lines: long ones, numbers, colours, parts of known failures again and again."""
    known = [failure.pattern for failure in load_catalog().failures if failure.pattern]
    line = st.one_of(
        st.sampled_from(LOG.splitlines()),
        st.sampled_from(TEXTS),
        st.sampled_from(COUNTS).flatmap(
            lambda line: st.sampled_from(("1", "9" * 5000, "", "-1", "1.5")).map(lambda count: line.replace("#", count))
        ),
        st.sampled_from(known).map(lambda text: re.sub(r"\\(.)|\(\?P<\w+>|[()*+?]", r"\1", text)),
        st.sampled_from(
            ("9", "1/", "(", "[", " ", "x=", "a.", "%", "| ", "://a", "://", "@", "-", "eyJ", "Bearer ", "error: ")
        ).flatmap(lambda part: st.sampled_from((10, 500, 5000, 60_000)).map(lambda most: part * most)),
    )
    return st.lists(line, max_size=12).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass"))


@cache
def kinds() -> tuple[Kind, ...]:
    """The kinds of this module."""
    lines = b"\n".join(written(prompt) for prompt in PROMPTS)
    prompt = (
        st.sampled_from(PROMPTS).flatmap(changed).map(written)
        | st.sampled_from(PROMPTS).map(written)
        | st.sampled_from(BYTES)
    )
    profiles, families = packaged("profiles", ("h100.yaml", "h200.yaml", "cpu.yaml")), packaged("families")
    engines, log = packaged("engines"), LOG.encode()
    if isinstance(engines[0], list):
        engines = engines[0]
    return (
        Kind(
            "catalog profile",
            [yaml.safe_dump(profiles[0]).encode()],
            yaml_documents(profiles),
            read_profile,
        ),
        Kind("catalog family", (), yaml_documents(families), entry("families", Family)),
        Kind("catalog engine", (), yaml_documents(engines), entry("engines", EngineRelease)),
        Kind("catalog failures", (), yaml_documents([FAILURES]), entry("failures", Failures)),
        Kind("failure pattern", (), patterns(), search),
        Kind("prompts file", [lines], st.lists(prompt, max_size=4).map(b"\n".join) | damaged([lines]), read_prompts),
        Kind("engine log", [log], logs() | damaged([log]), read_log),
    )
