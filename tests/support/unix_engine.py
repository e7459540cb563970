"""An engine behind a Unix socket that answers with what it was asked: `python -m tests.support.unix_engine`.

/echo      the request's method, target, headers and the size of its body
/stream    lines, one after another, until the client has gone; the file in $SEEN then says so
/slow      the same after a tenth of a second; a line of `spans`, beside the file in $SEEN, has its begin and end
/v1/chat/completions   five chunks if a stream is asked for; the second waits for the file `go`, beside that in $SEEN
/v1/completions   `max_tokens` events as llama.cpp b11549 sends them, `n` in a write, `pause` seconds between writes
/half      half of the announced answer, then the connection is closed
/exit      ends the process with code 7
"""

import json
import os
import signal
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

EVENT = (
    b'data: {"choices":[{"text":" word%d","index":0,"logprobs":null,"finish_reason":null}],"created":1795825885,'
    b'"model":"tiny","system_fingerprint":"b11549","object":"text_completion",'
    b'"id":"chatcmpl-FUt6WWmfx3FtXKvhwWA3cSsYRO3RcS38"%b}\n\n'
)
TIMINGS = (
    b',"timings":{"cache_n":0,"prompt_n":22,"prompt_ms":4.92,"prompt_per_token_ms":0.22363636363636363,'
    b'"prompt_per_second":4471.544715447155,"predicted_n":%d,"predicted_ms":2.046,"predicted_per_token_ms":1.023,'
    b'"predicted_per_second":977.5171065493647}'
)


class Handler(BaseHTTPRequestHandler):
    """Answers any method."""

    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "the door"

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _answer(self) -> None:
        if self.path == "/exit":
            os._exit(7)
        if self.path == "/half":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True
            return
        if self.path == "/stream":
            self._stream()
            return
        if self.path == "/slow":
            self._slow()
        if self.path == "/v1/chat/completions" and self.command == "POST":
            self._chat()
            return
        if self.path == "/v1/completions":
            self._complete(json.loads(self._read()))
            return
        asked = {
            "method": self.command,
            "target": self.path,
            "headers": [[name.lower(), value] for name, value in self.headers.items()],
            "body": len(self._read()),
        }
        text = json.dumps(asked).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _chat(self) -> None:
        body = self._read()
        self.send_response(200)
        if b'"stream":true' not in body.replace(b" ", b""):
            answer = json.dumps({"object": "chat.completion", "choices": [], "size": len(body)}).encode()
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            return
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for number in range(5):
            chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": str(number)}}]}
            self.wfile.write(f"data: {json.dumps({'id': 'x', 'created': 1, 'model': 'tiny', **chunk})}\n\n".encode())
            while not Path(os.environ["SEEN"]).with_name("go").exists():
                time.sleep(0.01)
        self.wfile.write(b"data: [DONE]\n\n")

    def _complete(self, asked: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        timings = TIMINGS if asked.get("timings_per_token") else b""
        events = [EVENT % (number, timings and timings % number) for number in range(asked["max_tokens"])]
        for begin in range(0, len(events), asked["n"]):
            self._chunk(b"".join(events[begin : begin + asked["n"]]))
            time.sleep(asked["pause"])
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, text: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))

    def _slow(self) -> None:
        begin = time.monotonic()
        time.sleep(0.1)
        with Path(os.environ["SEEN"]).with_name("spans").open("a") as spans:
            spans.write(f"{begin} {time.monotonic()}\n")

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for number in range(10_000):
                self._chunk(f"line {number}\n".encode())
                time.sleep(0.01)
        except OSError:
            Path(os.environ["SEEN"]).write_text("the client has gone")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_TRACE = _answer  # noqa: N815


def main() -> None:
    """Serve until SIGTERM, which ends it with code 0; end at once with code 5 if the file `broken` is beside $SEEN."""
    if Path(os.environ["SEEN"]).with_name("broken").exists():
        os._exit(5)
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    Path(os.environ["SEEN"]).with_name("environment").write_text(json.dumps(dict(os.environ)))
    with ThreadingUnixStreamServer(os.environ["LLAMA_ARG_HOST"], Handler) as server:
        server.daemon_threads = True
        server.serve_forever()


if __name__ == "__main__":
    main()
