"""A small SMTP server: it accepts one login and every mail, and keeps what it got."""

import base64
import email
import email.policy
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from queue import Queue
from typing import cast


@dataclass
class MailServer:
    """Its HOST:PORT, the mails that it got, and the logins that clients sent, each as user and password."""

    address: str
    mails: Queue[EmailMessage] = field(default_factory=Queue)
    logins: list[tuple[str, str]] = field(default_factory=list)


class _Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        kept = cast("_Server", self.server).kept
        self.say("220 tests")
        while line := self.rfile.readline().decode().strip():
            word = line.split()[0].upper()
            if word == "EHLO":
                self.say("250-tests", "250 AUTH PLAIN")
            elif word == "AUTH":
                _, user, password = base64.b64decode(line.split()[2]).decode().split("\0")
                kept.logins.append((user, password))
                self.say("235 yes")
            elif word == "DATA":
                self.say("354 go on")
                kept.mails.put(self.mail())
                self.say("250 yes")
            elif word == "QUIT":
                self.say("221 bye")
                return
            else:
                self.say("250 yes")

    def mail(self) -> EmailMessage:
        lines = []
        while (line := self.rfile.readline()) not in {b".\r\n", b""}:
            lines.append(line.removeprefix(b"."))
        return email.message_from_bytes(b"".join(lines), policy=email.policy.default)

    def say(self, *lines: str) -> None:
        self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    kept: MailServer


@contextmanager
def mail_server() -> Iterator[MailServer]:
    """Serve on 127.0.0.1 as long as the block runs."""
    with _Server(("127.0.0.1", 0), _Session) as server:
        server.kept = MailServer(f"127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.kept
        finally:
            server.shutdown()
            thread.join()
