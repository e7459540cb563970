"""The Caddyfile is a function of typed inputs; nothing of a key or of a user's text gets into it unseen."""

import re
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.door.caddyfile import PATHS, ROUTED, ROUTER_METRICS_PATH, Door, caddyfile, metrics_path
from dflash_deploy.door.site import Authority, Plain, Site, site_of
from dflash_deploy.errors import ExitCode, SettingsRefused
from dflash_deploy.serve.gateway.keys import INFERENCE, opens
from tests.support.parsers.fetch import REPOSITORY

MIB = 1 << 20


PUBLIC = Site("llm.example.com")


def door(site: Site | Plain = PUBLIC, **more: object) -> Door:
    given_values = {"upstreams": ("127.0.0.1:8000",), "storage": "/data", "body_bytes": 64 * MIB, **more}
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


def test_plain_http_on_one_address_has_no_certificate() -> None:
    text = caddyfile(door(Plain("127.0.0.1", 8000), upstreams=("127.0.0.1:30000",)))
    # `http://127.0.0.1:8000` would listen on all addresses
    assert sites(text) == ["http://:8000"]
    assert "\tbind 127.0.0.1\n" in text
    assert "tls" not in text.replace("skip_install_trust", "")


def test_a_router_gets_what_generates_and_the_gateways_all_else() -> None:
    text = caddyfile(door(upstreams=("127.0.0.1:8003", "127.0.0.1:8004"), router="127.0.0.1:8001"))
    routed, rest = text.partition("handle @routed {")[2].split("@published path", 1)
    assert "reverse_proxy 127.0.0.1:8001 {" in routed
    assert "reverse_proxy 127.0.0.1:8003 127.0.0.1:8004 {" in rest
    assert set(ROUTED) < set(INFERENCE)
    assert "/v1/models" not in ROUTED
    assert "@routed" not in caddyfile(door())


def test_a_router_gets_no_body_above_the_limit_and_no_header_of_its_own() -> None:
    text = caddyfile(door(upstreams=("127.0.0.1:8003",), router="127.0.0.1:8001"))
    assert f'== "" || int({{http.request.header.Content-Length}}) <= {64 * MIB}`' in text
    routed = text.partition("handle @routed {")[2].partition("@published path")[0]
    assert f"max_size {64 * MIB}\n" in routed
    assert "request_header -X-Smg-*" in routed
    assert "header_down -X-Smg-*" in routed


def test_an_answer_above_a_limit_is_429_again() -> None:
    text = caddyfile(door(router="127.0.0.1:8001"))
    assert "request_header X-Request-Id-Dflash-Routed 1" in text
    assert re.search(r"handle_response @limited \{[^}]*key_name [^\n]*\n\s*copy_response 429\n", text)
    assert "@limited" not in caddyfile(door())
    # a client cannot say that its request came through the router
    for one in (caddyfile(door()), text):
        removed, _, published = one.partition("request_header -X-Request-Id-Dflash-Routed\n")
        assert "handle" not in removed.partition("route {")[2]
        assert "handle @published" in published


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


def test_several_gateways_are_checked() -> None:
    text = caddyfile(door(upstreams=("127.0.0.1:8001", "127.0.0.1:8002")))
    assert "reverse_proxy 127.0.0.1:8001 127.0.0.1:8002 {" in text
    assert "health_uri /health" in text
    assert "health_uri" not in caddyfile(door())


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
        caddyfile(door(upstreams=(text,)))
    with pytest.raises(SettingsRefused, match="cannot be written into a Caddyfile"):
        caddyfile(door(authority=Authority(root=text)))


def test_the_document_shows_this_caddyfile() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "serve-under-a-domain.md").read_text()
    shown = page.partition("```caddyfile\n")[2].partition("    ```")[0]
    written = caddyfile(door(storage="/var/lib/caddy")).partition("\n")[2]
    assert textwrap.dedent(shown) == written


def test_several_engines_under_a_domain_are_served_on_their_own_address_too() -> None:
    text = caddyfile(door(router="127.0.0.1:8001", local=Plain("127.0.0.1", 8000)))
    assert sites(text)[:2] == ["http://:8000", "https://llm.example.com"]
    assert text.count("\tbind ") == text.count("\tbind 127.0.0.1\n") == 1
    assert text.count("reverse_proxy 127.0.0.1:8001 {") == 2


def test_metrics_are_not_on_the_site_with_a_certificate() -> None:
    upstreams, plain = ("engine-1:8000", "engine-2:8000"), Plain("0.0.0.0", 8000)
    text = caddyfile(door(PUBLIC, upstreams=upstreams, local=plain, measured=True, router_metrics="router:8002"))
    inside, outside = text.split("https://llm.example.com {")
    assert [inside.count(f"path {metrics_path(number)}") for number in (1, 2, 3)] == [1, 1, 0]
    assert inside.count(f"path {ROUTER_METRICS_PATH}\n") == inside.count("reverse_proxy router:8002 {") == 1
    assert "/metrics" not in outside
    assert "router:8002" not in outside
    assert "/metrics" not in caddyfile(door(plain, upstreams=upstreams))
