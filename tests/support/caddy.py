"""The real Caddy as a process of a test, with a Caddyfile of the program."""

import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.door.caddy import find_caddy
from dflash_deploy.door.caddyfile import Door, caddyfile
from dflash_deploy.door.site import Site
from tests.support.attacked import Endpoint
from tests.support.door import HANGS, until
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
"""A Caddy as an ACME authority."""


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
"""A Caddy whose certificate stays valid for an hour, which answers every request."""


@dataclass(frozen=True)
class Published:
    """A running Caddy: its process, the file with its access log, and the directory with its certificates."""

    process: subprocess.Popen[bytes]
    log: Path
    errors: Path
    storage: Path

    @property
    def root(self) -> Path:
        """The certificate of Caddy's own authority."""
        return self.storage / "pki" / "authorities" / "local" / "root.crt"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def hands_over_a_certificate(site: Site) -> bool:
    """Whether a TLS handshake succeeds: Caddy stores a certificate a moment before it serves it."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(("127.0.0.1", site.https_port), timeout=HANGS) as connection:
            unchecked.wrap_socket(connection, server_hostname=site.host).close()
    except OSError:
        return False
    return True


@contextmanager
def running(place: Path, text: str, port: int, storage: Path) -> Iterator[Published]:
    """Caddy with this Caddyfile, until it listens on `port`."""
    place.mkdir(exist_ok=True)
    (place / "Caddyfile").write_text(text)
    log, errors = place / "access.log", place / "errors.log"
    with log.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            find_caddy().run(place / "Caddyfile"),
            stdout=out,
            stderr=err,
            env={"PATH": os.environ["PATH"], "HOME": str(place)},
        )
    with process:
        try:

            def ready() -> bool:
                assert process.poll() is None, errors.read_text()
                return listens(port)

            until(ready)
            yield Published(process, log, errors, storage)
        finally:
            process.terminate()
            process.wait(HANGS)


@contextmanager
def expiring(place: Path) -> Iterator[tuple[str, Path]]:
    """Caddy with a certificate that expires within an hour; yields its URL, and the root of its authority."""
    port, storage = free_port(), place / "data"
    text = EXPIRING.format(storage=storage, unused=free_port(), port=port)
    with running(place, text, port, storage) as made:
        until(lambda: hands_over_a_certificate(Site("localhost", https_port=port)))
        yield f"https://localhost:{port}", made.root


@contextmanager
def published(place: Path, door: Door) -> Iterator[Published]:
    """Caddy with the Caddyfile of a door; its certificate is there."""
    port = door.site.https_port if isinstance(door.site, Site) else door.site.port
    site = door.site
    with running(place, caddyfile(door), port, Path(door.storage)) as made:
        if isinstance(site, Site):
            until(lambda: any((made.storage / "certificates").rglob("*.crt")))
            until(lambda: hands_over_a_certificate(site))
        yield made


@contextmanager
def in_front_of(endpoint: Endpoint, place: Path, *, mib: int = 64) -> Iterator[Endpoint]:
    """An endpoint under a domain: Caddy with our Caddyfile and TLS. `mib` is the limit of its bodies."""
    site = Site("127.0.0.1", free_port(), free_port())
    upstream = endpoint.url.removeprefix("http://")
    with published(place / "caddy", Door(site, upstream, str(place / "data"), mib << 20)) as caddy:
        yield Endpoint(site.url, endpoint.key, ssl.create_default_context(cafile=str(caddy.root)))
