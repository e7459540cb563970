"""Ranges, faults and the ledger of the hub of the tests, asked by hand."""

import gzip
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime

import httpcore
import httpx
import pytest
from huggingface_hub.utils._http import parse_ratelimit_headers

from tests.hub.weights.published import BYTES, CONFIG, FILES, NAME, SHA256, SHARD, WEIGHTS, get
from tests.support.hub import Generated, Hub, read
from tests.support.hub.faults import (
    Cut,
    Drip,
    Fault,
    Flip,
    Gzipped,
    NoLength,
    Page,
    Redirects,
    Republished,
    Reset,
    Shifted,
    Stall,
    Unsatisfiable,
    Wait,
    WholeBody,
    broken,
    expired_link,
    rate_limited,
    too_many,
)


class TestRanges:
    @pytest.mark.parametrize(
        ("asked", "start", "stop"),
        [("0-0", 0, 1), ("5-9", 5, 10), ("2499999-", 2_499_999, 2_500_000), ("-7", 2_499_993, 2_500_000)],
    )
    def test_a_part(self, http: httpx.Client, asked: str, start: int, stop: int) -> None:
        part = get(http, Range=f"bytes={asked}")
        assert (part.status_code, part.content) == (206, BYTES[start:stop])
        assert part.headers["Content-Range"] == f"bytes {start}-{stop - 1}/2500000"

    def test_a_part_of_a_small_file(self, http: httpx.Client) -> None:
        assert get(http, "config.json", Range="bytes=2-4").content == CONFIG[2:5]

    def test_a_part_that_is_not_there(self, http: httpx.Client) -> None:
        none = get(http, Range="bytes=2500000-")
        assert (none.status_code, none.headers["Content-Range"]) == (416, "bytes */2500000")

    def test_a_part_only_of_the_same_version(self, hub: Hub, http: httpx.Client) -> None:
        name = get(http).headers["ETag"]
        assert name != f'"{SHA256}"'
        same = get(http, **{"Range": "bytes=5-9", "If-Range": name})
        other = get(http, **{"Range": "bytes=5-9", "If-Range": '"other"'})
        assert (same.status_code, other.status_code) == (206, 200)

    def test_many_parts_at_once(self, hub: Hub, http: httpx.Client) -> None:
        def part(at: int) -> bytes:
            return get(http, Range=f"bytes={at}-{at + 99_999}").content

        with ThreadPoolExecutor(8) as pool:
            assert b"".join(pool.map(part, range(0, WEIGHTS.size, 100_000))) == BYTES
        assert hub.sent(SHARD) == WEIGHTS.size

    def test_blocks_differ(self) -> None:
        big = Generated(5 << 20)
        blocks = {read(big, at, at + 1000) for at in range(0, big.size, 1 << 20)}
        assert len(blocks) == 5
        assert read(big, (1 << 20) - 10, (1 << 20) + 10) == read(big)[(1 << 20) - 10 : (1 << 20) + 10]


class TestFaults:
    def test_come_one_request_at_a_time(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, broken(502), None, broken(504))
        assert [get(http).status_code for _ in range(4)] == [502, 200, 504, 200]
        hub.faults(SHARD, broken(503), forever=True)
        assert [get(http).status_code for _ in range(3)] == [503] * 3
        hub.heal()
        assert get(http).status_code == 200

    def test_belong_to_a_stage_and_a_method(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(f"{NAME}/*", broken(503), stage="resolve", method="HEAD")
        assert get(http).status_code == 200
        assert http.head(f"/{NAME}/resolve/main/{SHARD}").status_code == 503
        hub.faults("/api/models/*", broken(500), stage="api")
        assert http.get(f"/api/models/{NAME}").status_code == 500

    @pytest.mark.parametrize("fault", [Cut(1_500_000), Reset(1_500_000)])
    def test_a_connection_ends(self, hub: Hub, http: httpx.Client, fault: Fault) -> None:
        hub.faults(SHARD, fault)
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)) as end:
            get(http)
        assert isinstance(end.value, httpx.ReadError) == isinstance(fault, Reset)
        assert hub.sent(SHARD) == 1_500_000
        assert get(http).content == BYTES

    def test_a_range_is_ignored(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, WholeBody())
        whole = get(http, Range="bytes=5-9")
        assert (whole.status_code, whole.content) == (200, BYTES)

    def test_a_range_is_refused(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Unsatisfiable())
        assert get(http, Range="bytes=5-9").status_code == 416

    def test_a_range_is_another_one(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Shifted(2))
        part = get(http, Range="bytes=5-9")
        assert (part.content, part.headers["Content-Range"]) == (BYTES[7:10], "bytes 7-9/2500000")

    def test_too_many_requests(self, hub: Hub, http: httpx.Client) -> None:
        asked = time.time()
        hub.faults(SHARD, too_many(7), too_many(60, as_date=True), rate_limited(55, quota=3000), stage="resolve")
        plain, dated, said = get(http), get(http), get(http)
        assert [answer.status_code for answer in (plain, dated, said)] == [429] * 3
        assert plain.headers["Retry-After"] == "7"
        # the date is of whole seconds
        assert asked + 59 <= parsedate_to_datetime(dated.headers["Retry-After"]).timestamp() <= time.time() + 60
        limit = parse_ratelimit_headers(said.headers)
        assert limit is not None
        assert (limit.resource_type, limit.remaining, limit.reset_in_seconds, limit.limit) == ("resolvers", 0, 55, 3000)

    def test_silence_in_the_body(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Stall(1000, 0.3))
        began = time.monotonic()
        with http.stream("GET", f"/{NAME}/resolve/main/{SHARD}") as answer:
            pieces = list(answer.iter_raw())
        assert time.monotonic() - began > 0.3
        assert (len(pieces[0]), b"".join(pieces)) == (1000, BYTES)

    def test_silence_is_as_long_as_it_says(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Stall(1000, 60))
        with http.stream("GET", f"/{NAME}/resolve/main/{SHARD}") as answer:
            pieces = answer.iter_raw()
            assert len(next(pieces)) == 1000
            with pytest.raises(httpcore.ReadTimeout):
                answer.extensions["network_stream"].read(1, timeout=0.5)
        assert hub.sent(SHARD) == 1000

    def test_silence_before_the_head(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Wait(60), stage="resolve")
        with pytest.raises(httpx.ReadTimeout):
            http.get(f"/{NAME}/resolve/main/{SHARD}", timeout=0.5)

    def test_a_drip(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Drip(1_000_000))
        began = time.monotonic()
        assert get(http, Range="bytes=0-299999").content == BYTES[:300_000]
        assert time.monotonic() - began > 0.25

    def test_a_wrong_byte(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, Flip(1_000_000), Flip(1_000_000))
        whole, part = get(http), get(http, Range="bytes=1000000-1000001")
        assert [at for at in range(WEIGHTS.size) if whole.content[at] != BYTES[at]] == [1_000_000]
        assert (part.content[0] ^ 0xFF, part.content[1]) == (BYTES[1_000_000], BYTES[1_000_001])

    def test_another_version_under_the_same_address(self, hub: Hub, http: httpx.Client) -> None:
        before = get(http).headers["ETag"]
        hub.faults(SHARD, Republished())
        after = get(http, **{"Range": "bytes=5-", "If-Range": before})
        assert after.headers["ETag"] != before
        assert (after.status_code, len(after.content)) == (200, WEIGHTS.size)
        assert after.content != BYTES

    @pytest.mark.parametrize("file", [SHARD, "config.json"])
    def test_a_chain_of_redirects(self, hub: Hub, http: httpx.Client, file: str) -> None:
        hub.faults(file, Redirects(3), stage="resolve")
        answer = get(http, file)
        assert answer.content == (BYTES if file == SHARD else CONFIG)
        assert len(answer.history) == 4
        hub.faults(file, Redirects(25), stage="resolve")
        with pytest.raises(httpx.TooManyRedirects):
            get(http, file)

    def test_no_length(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, NoLength())
        answer = get(http)
        assert "Content-Length" not in answer.headers
        assert answer.content == BYTES

    def test_no_length_and_no_end(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults(SHARD, NoLength())
        hub.faults(SHARD, Cut(1000))
        with pytest.raises(httpx.RemoteProtocolError):
            get(http)

    def test_a_page_for_people(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults("config.json", Page())
        answer = get(http, "config.json", Range="bytes=5-9")
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "sign in" in answer.text

    def test_a_proxy_that_compresses(self, hub: Hub, http: httpx.Client) -> None:
        hub.faults("config.json", Gzipped())
        with http.stream("GET", f"/{NAME}/resolve/main/config.json", headers={"Range": "bytes=5-"}) as answer:
            packed = b"".join(answer.iter_raw())
        assert answer.status_code == 200
        assert answer.headers["Content-Encoding"] == "gzip"
        assert int(answer.headers["Content-Length"]) == len(packed) != len(CONFIG)
        assert gzip.decompress(packed) == CONFIG

    def test_an_address_that_ran_out(self, hub: Hub, http: httpx.Client) -> None:
        address = http.head(f"/{NAME}/resolve/main/{SHARD}", follow_redirects=False).headers["Location"]
        assert httpx.get(address, trust_env=False).status_code == 200
        hub.expire_links()
        assert httpx.get(address, trust_env=False).status_code == 403
        assert get(http).status_code == 200
        hub.faults(SHARD, expired_link())
        assert get(http).status_code == 403


class TestTheLedger:
    def test_names_ranges_and_counts_bytes(self, hub: Hub, http: httpx.Client) -> None:
        get(http, Range="bytes=0-99")
        get(http, "config.json")
        seen = hub.requests(SHARD, stage="body")
        assert [(one.method, one.range, one.status, one.sent) for one in seen] == [("GET", "bytes=0-99", 206, 100)]
        assert (hub.sent(SHARD), hub.sent("config.json"), hub.sent()) == (100, len(CONFIG), 100 + len(CONFIG))
        hub.forget()
        assert hub.requests() == []

    def test_sees_a_token_that_leaks_and_keeps_none(self, hub: Hub, http: httpx.Client) -> None:
        get(http, Authorization="Bearer hf_reader")
        assert hub.leaks == []
        address = http.head(f"/{NAME}/resolve/main/{SHARD}", follow_redirects=False).headers["Location"]
        httpx.get(address, headers={"Authorization": "Bearer hf_reader"}, trust_env=False)
        assert [(one.site, one.file, one.account) for one in hub.leaks] == [("cdn", f"{NAME}/{SHARD}", "reader")]
        assert "hf_reader" not in repr(hub.requests())


def test_a_slow_hub() -> None:
    with Hub(latency=0.1, rate=1_000_000) as hub:
        hub.add(NAME, FILES)
        began = time.monotonic()
        address = f"{hub.endpoint}/{NAME}/resolve/main/{SHARD}"
        answer = httpx.get(address, headers={"Range": "bytes=0-199999"}, follow_redirects=True, trust_env=False)
        assert len(answer.content) == 200_000
        assert time.monotonic() - began > 0.35
