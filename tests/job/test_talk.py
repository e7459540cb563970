"""`ask` and `chat` with the real llama.cpp and the tiny pair."""

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from dflash_deploy.client.images import plain_png
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support import documents
from tests.support.cli import HANGS, dflash
from tests.support.contract import STRICT, STRICT_ROWS, obeys_a_schema_of_responses, problems
from tests.support.llamacpp_native import init, server_of
from tests.support.odd_answers import Reply
from tests.support.odd_answers import answering as answering_oddly
from tests.support.screen import on_screen
from tests.support.server import Server

FRANCE, COLOUR = "What is the capital of France?", "What colour is this image?"
PARIS, RED = "The capital of France is Paris.", "The image is red."
TUTORIAL = documents.ROOT / "docs" / "tutorials" / "no-gpu.md"
FIGURES = re.compile(r"\d+ tokens, \d+ tokens/s, first token after \d\.\d\d s, acceptance length \d\.\d\d")


def picture(kind: str) -> bytes:
    written = io.BytesIO()
    Image.open(io.BytesIO(plain_png((255, 0, 0), 224, 224))).save(written, kind)
    return written.getvalue()


def piped(given: bytes, *args: str, at: Path) -> subprocess.CompletedProcess[bytes]:
    """A command with something on standard input."""
    command = [sys.executable, "-m", "dflash_deploy", *args]
    return subprocess.run(command, cwd=at, input=given, capture_output=True, timeout=HANGS, check=False)


def test_only_the_answer_is_on_standard_output(answering: Path) -> None:
    done = dflash("ask", FRANCE, at=answering).succeeded()
    assert done.out == f"{PARIS}\n"
    assert FIGURES.fullmatch(done.err.strip())


def test_the_tutorial_asks_about_a_picture(answering: Path) -> None:
    shown = next(one for one in documents.transcripts(TUTORIAL) if one.command.words[0] == "ask")
    ran = dflash(*shown.command.words, "--dir", str(answering), at=documents.ROOT).succeeded()
    assert tuple(ran.out.splitlines()) == shown.output


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "AVIF"])
def test_a_picture_of_any_kind_is_described(kind: str, answering: Path, tmp_path: Path) -> None:
    file = tmp_path / "picture"
    file.write_bytes(picture(kind))
    assert dflash("ask", COLOUR, "--image", str(file), at=answering).succeeded().out == f"{RED}\n"


def test_the_document_has_answer_and_figures(answering: Path) -> None:
    data = dflash("ask", FRANCE, "--json", at=answering).succeeded().document["data"]
    assert data["answer"] == PARIS
    assert data["finish_reason"] == "stop"
    assert data["acceptance_length"] == 8
    assert data["tokens"] == 9


@pytest.mark.slow
def test_the_endpoint_keeps_its_contract_on_this_engine(answering: Path) -> None:
    server = Server(answering)
    with server.connect() as endpoint:
        assert problems(endpoint.url, server.key, llamacpp=True) == []
        assert obeys_a_schema_of_responses(endpoint.url, server.key)


@pytest.mark.slow
def test_it_keeps_it_with_a_template_that_refuses(answering: Path) -> None:
    server = Server(answering)
    arguments = Deployment.existing(answering).values["EXTRA_ARGS"]
    with server.serve_as(EXTRA_ARGS=f"{arguments} --chat-template-file {STRICT}") as endpoint:
        assert problems(endpoint.url, server.key, llamacpp=True, rows=STRICT_ROWS) == []
    dflash("up", at=answering).succeeded()


def test_standard_input_is_a_question_a_picture_or_a_file(answering: Path) -> None:
    assert piped(FRANCE.encode(), "ask", at=answering).stdout.decode() == f"{PARIS}\n"
    assert piped(picture("PNG"), "ask", COLOUR, "--image", "-", at=answering).stdout.decode() == f"{RED}\n"
    latin = piped("café".encode("latin-1"), "ask", at=answering)
    assert latin.returncode == ExitCode.USAGE
    assert "standard input is not UTF-8 text" in latin.stderr.decode()


def test_a_measured_speed_without_drafts_is_shown_beside(answering: Path) -> None:
    told = ("--baseline", "--concurrency", "1", "--workload", "own", "--requests", "4")
    dflash("bench", *told, at=answering).succeeded()
    assert re.search(r"without drafts \d+ tokens/s \(bench of \d{4}-", dflash("ask", FRANCE, at=answering).err)


def test_pictures_that_are_none_are_refused_with_a_hint(answering: Path, tmp_path: Path) -> None:
    whole = picture("PNG")
    files = {
        "text": b"no picture",
        "heic": b"\0\0\0\x18ftypheic" + bytes(100),
        "cut": whole[: len(whole) // 2],
        "huge": bytes(50 * 2**20),
        "bomb": plain_png((0, 0, 0), 20_000, 10_000),
    }
    said = {
        "text": "is not a picture that can be read",
        "heic": "is not a picture that can be read",
        "cut": "is damaged",
        "huge": "20",
        "bomb": "megapixels",
    }
    for name, content in files.items():
        file = tmp_path / name
        file.write_bytes(content)
        done = dflash("ask", COLOUR, "--image", str(file), at=answering)
        assert done.code is ExitCode.USAGE, done.err
        assert said[name] in done.err.splitlines()[0]
        assert "hint: " in done.err
    assert "is a directory" in dflash("ask", COLOUR, "--image", str(tmp_path), at=answering).err
    assert "is not a file" in dflash("ask", COLOUR, "--image", "https://box/x.png", at=answering).err


def test_a_question_that_exceeds_the_context_is_refused_with_its_size(answering: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 5000)
    done = dflash("ask", "Why?", "--file", str(tmp_path / "long.txt"), at=answering)
    assert done.code is ExitCode.USAGE
    assert "2048" in done.err


@pytest.mark.slow
def test_an_answer_that_breaks_off_is_shown_and_ends_with_an_error(tmp_path: Path) -> None:
    # what a client sees of an engine that dies: a part of the stream, without its end
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "The capital"}, "finish_reason": null}]}\n\n'
    with answering_oddly(Reply(event, headers={"Content-Type": "text/event-stream"})) as url:
        done = dflash("ask", FRANCE, "--url", url, "--model", "any", at=tmp_path)
    assert (done.code, done.out) == (ExitCode.NOT_READY, "The capital\n")
    assert "the stream ended before the answer did" in done.err
    assert "hint: " in done.err


def test_without_an_endpoint_the_start_is_named(tmp_path: Path) -> None:
    init(tmp_path)
    done = dflash("ask", FRANCE, at=tmp_path)
    assert done.code is ExitCode.NOT_READY
    assert "dflash-deploy up" in done.err


def test_a_port_with_the_engine_of_another_deployment_leads_to_status(answering: Path, tmp_path: Path) -> None:
    init(tmp_path, "--port", Deployment(answering).values["DFLASH_PORT"])
    refused = dflash("ask", FRANCE, at=tmp_path)
    assert refused.code is ExitCode.USAGE
    assert "hint: `dflash-deploy status` says whether it is the deployment's engine that answered" in refused.err
    assert "state     absent: no engine runs" in dflash("status", at=tmp_path).succeeded().out


READY = "Alt-Enter"  # A part of the line at the bottom while a question can be typed


@pytest.mark.slow
def test_a_conversation_keeps_what_was_said_until_it_is_reset(answering: Path, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(picture("PNG"))
    with on_screen("chat", at=answering) as chat:
        chat.shows(READY)
        chat.types(FRANCE)
        chat.shows(PARIS)
        chat.shows("acceptance length")
        chat.types(f"/save {tmp_path / 'talk.md'}")
        chat.shows("written:")
        chat.types("/reset")
        chat.shows("is empty")
        chat.types(f"/image {tmp_path / 'red.png'}")
        chat.shows("goes along")
        chat.types(COLOUR)
        chat.shows(RED)
        chat.types("/unknown")
        chat.shows("is not known here")
        # Ctrl-D that arrives before the next line can be typed is lost: the terminal keeps it for itself
        chat.shows(READY)
        chat.child.sendeof()
        assert chat.ended() == ExitCode.DONE
    assert (tmp_path / "talk.md").read_text() == f"**user**\n\n{FRANCE}\n\n**assistant**\n\n{PARIS}\n"


@pytest.mark.slow
def test_ctrl_c_ends_the_answer_and_not_the_chat(answering: Path) -> None:
    server = server_of(answering)
    with on_screen("chat", at=answering) as chat:
        chat.shows(READY)
        os.kill(server, signal.SIGSTOP)
        try:
            chat.types(FRANCE)
            # the line at the bottom leaves when the question is sent
            chat.hides(READY)
            while "(ended)" not in chat.text:
                # the terminal may still be in the mode in which the line was typed, where Ctrl-C is a key
                chat.child.sendintr()
                chat.reads()
        finally:
            os.kill(server, signal.SIGCONT)
        chat.types("/reset")
        chat.shows("is empty")
        chat.types(FRANCE)
        chat.shows(PARIS)


@pytest.mark.slow
def test_f2_shades_the_tokens_that_came_in_one_step(answering: Path) -> None:
    with on_screen("chat", at=answering) as chat:
        chat.shows(READY)
        chat.child.send("\x1bOQ")
        chat.shows("steps shaded")
        chat.types(FRANCE)
        chat.shows(PARIS)
        # the first token is that of the prefill, all others came in one step
        shades = chat.backgrounds(PARIS)
        assert (len(set(shades[:3])), len(set(shades[3:]) - {"default"})) == (1, 1)
        assert shades[0] != shades[-1]


def test_chat_in_a_pipe_names_ask(answering: Path) -> None:
    done = piped(b"hello", "chat", at=answering)
    assert done.returncode == ExitCode.USAGE
    assert "dflash-deploy ask" in done.stderr.decode()
