"""The Caddyfile is a function of typed inputs; nothing of a key or of a user's text gets into it unseen."""

import re
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.door.caddyfile import PATHS, Door, caddyfile
from dflash_deploy.door.site import Authority, Plain, Site, site_of
from dflash_deploy.errors import ExitCode, SettingsRefused
from dflash_deploy.serve.gateway.keys import opens
from tests.support.parsers.fetch import REPOSITORY

MIB = 1 << 20


PUBLIC = Site("llm.example.com")


def door(site: Site = PUBLIC, **more: object) -> Door:
    given_values = {"upstream": "127.0.0.1:8000", "storage": "/data", "body_bytes": 64 * MIB, **more}
    return Door(site, **given_values)  # type: ignore[arg-type]


def sites(text: str) -> list[str]:
    """The addresses of the blocks, without the one of options."""
    return re.findall(r"^(\S.*) \{$", text, re.MULTILINE)


def test_a_public_name_has_a_site_a_redirect_and_a_refusal_of_other_names() -> None:
    text = caddyfile(door())
    assert sites(text) == ["https://llm.example.com", "http://llm.example.com", "https://:443", "http://:80"]
    assert "\tredir https://llm.example.com{uri} 308\n" in text
    assert "issuer acme" in text
    assert text.count("respond 421") == 2


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("llm.example.com", False),
        ("box.internal", True),
        ("box", True),
        ("box.home.arpa", True),
        ("localhost", True),
        ("192.168.1.5", True),
        ("8.8.8.8", True),
        ("2001:db8::1", True),
        ("internal.example.com", False),
    ],
)
def test_private_names_and_addresses_have_caddys_own_certificate(host: str, private: bool) -> None:
    site = site_of(host)
    assert site.is_private is private
    assert ("\ttls internal\n\tlog" in caddyfile(door(site))) is private


def test_an_address_is_the_certificate_of_clients_that_send_no_name() -> None:
    assert "default_sni 192.168.1.5" in caddyfile(door(site_of("192.168.1.5")))
    assert "default_sni" not in caddyfile(door())


def test_an_address_is_in_its_shortest_form_as_in_the_requests_of_clients() -> None:
    assert site_of("2001:DB8:0:0::5").host == "2001:db8::5"


def test_other_ports_are_in_each_address() -> None:
    site = site_of("2001:DB8::1", http_port=8080, https_port=8443)
    assert site.url == "https://[2001:db8::1]:8443"
    assert sites(caddyfile(door(site)))[:2] == ["https://[2001:db8::1]:8443", "http://[2001:db8::1]:8080"]


def test_an_authority_of_your_own() -> None:
    authority = Authority("https://ca.internal/acme/local/directory", "/a path/root.crt")
    text = caddyfile(door(site_of("box.internal"), authority=authority))
    assert "dir https://ca.internal/acme/local/directory" in text
    assert 'trusted_roots "/a path/root.crt"' in text
    assert "\ttls internal\n\tlog" not in text


def test_published_paths_are_those_of_applications() -> None:
    plain = [path.removesuffix("*") + "x" * path.endswith("*") for path in PATHS if path != "/health"]
    assert plain
    assert all(opens("infer", "GET", path) for path in plain)
    assert " /metrics" not in caddyfile(door())


def test_browsers_may_ask_first_if_origins_are_allowed() -> None:
    text = caddyfile(door(origins=("https://a.example", "https://b.example")))
    assert "not method OPTIONS" in text
    # of the site and of its errors
    assert text.count("header Origin https://a.example\n") == text.count("header Origin https://b.example\n") == 2
    assert "OPTIONS" not in caddyfile(door())
    assert "Origin" not in caddyfile(door())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://llm.example.com",
        "llm.example.com:8443",
        "llm.example.com/v1",
        "user@llm.example.com",
        "llm example.com",
        "llm..example.com",
        "-llm.example.com",
        "*.example.com",
        "10.1",
        "300.1.1.1",
        "a_b.example.com",
        "x" * 64 + ".example.com",
        "exa{env.KEY}mple.com",
    ],
)
def test_what_is_not_a_host_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(SettingsRefused, match="is not a valid domain name or IP address") as refusal:
        site_of(text)
    assert refusal.value.exit_code == ExitCode.USAGE
    assert "llm.example.com" in refusal.value.hint


@given(st.text(max_size=40))
def test_any_text_is_a_plain_host_or_refused(text: str) -> None:
    try:
        site = site_of(text)
    except SettingsRefused:
        return
    assert re.fullmatch(r"[0-9a-z.:%-]+", site.host), site
    assert sites(caddyfile(door(site)))[0] == site.url


@pytest.mark.parametrize("text", ["{env.KEY}", "a\nb", 'a"b', "a`b", "a\\b"])
def test_what_a_caddyfile_would_read_otherwise_is_refused(text: str) -> None:
    with pytest.raises(SettingsRefused, match="cannot be written into a Caddyfile"):
        caddyfile(door(storage=text))
    with pytest.raises(SettingsRefused, match="cannot be written into a Caddyfile"):
        caddyfile(door(upstream=text))
    with pytest.raises(SettingsRefused, match="cannot be written into a Caddyfile"):
        caddyfile(door(authority=Authority(root=text)))


def test_the_document_shows_this_caddyfile() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "serve-under-a-domain.md").read_text()
    shown = page.partition("```caddyfile\n")[2].partition("    ```")[0]
    written = caddyfile(door(storage="/var/lib/caddy")).partition("\n")[2]
    assert textwrap.dedent(shown) == written


def test_an_address_is_served_with_plain_http_too() -> None:
    text = caddyfile(door(local=Plain("127.0.0.1", 8000)))
    # `http://127.0.0.1:8000` would listen on all addresses
    assert sites(text)[:2] == ["http://:8000", "https://llm.example.com"]
    assert text.count("\tbind ") == text.count("\tbind 127.0.0.1\n") == 1
    assert text.count("reverse_proxy 127.0.0.1:8000 {") == 2
    assert "/metrics" not in text
