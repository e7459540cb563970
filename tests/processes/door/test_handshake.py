"""What Caddy's log says of a certificate that an authority refused."""

import json

from dflash_deploy.door.caddy import refusal, shaken
from dflash_deploy.door.site import Site
from tests.support.ports import free_port


def line(level: str, message: str, error: str = "", logger: str = "tls.obtain") -> str:
    return json.dumps({"level": level, "logger": logger, "msg": message, **({"error": error} if error else {})})


REFUSED = line("error", "could not get certificate from issuer", "HTTP 400 urn:ietf:params:acme:error:dns - NXDOMAIN")


def test_the_last_refusal_counts_until_a_certificate_is_obtained() -> None:
    assert refusal([]) == ""
    assert refusal([line("info", "obtaining certificate"), REFUSED]).endswith("NXDOMAIN")
    assert refusal([REFUSED, line("info", "certificate obtained successfully")]) == ""


def test_other_lines_are_no_refusal() -> None:
    others = (
        line("error", "x", "y", logger="http.log.error"),
        "tls.obtain",
        '{"logger": "tls.obtain"',
        '["tls.obtain"]',
        line("info", "tls.obtain", "z", logger="http"),
    )
    assert refusal(others) == ""


def test_a_port_without_a_server_has_no_certificate() -> None:
    assert shaken(Site("localhost", 80, free_port()), None).startswith("no certificate yet: ")
