"""A watched engine: what is said of a decay, a hang and a restart, and what is not."""

from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.client.metrics import Metrics
from dflash_deploy.serve.engines.counters import SpecCounters
from dflash_deploy.startup.watch import SILENT_LOOKS, Reading, Watch, Window


def look(
    at: float,
    tokens: int = 0,
    *,
    drafts: int = 0,
    accepted: int = 0,
    running: int = 1,
    who: str = "1",
    computed: int = 0,
) -> Reading:
    drafted = SpecCounters(drafts, drafts * 7, accepted, (drafts // 2,))
    counted = Metrics("vllm", drafted, tokens, running, 2, 0.25, computed=computed)
    return Reading(at, "running", who, counted)


def test_the_figures_are_those_of_the_window() -> None:
    watch = Watch()
    first, second, third = (
        watch.see(look(0.0, 1000, drafts=100, accepted=100)),
        watch.see(look(5.0, 2000, drafts=200, accepted=700)),
        # a few drafts say nothing
        watch.see(look(10.0, 2050, drafts=205, accepted=705)),
    )
    assert first == Window("running", 1, 2, cache=0.25)
    assert second == Window("running", 1, 2, 200.0, 7.0, 0.25)
    assert third == Window("running", 1, 2, 10.0, None, 0.25)


def test_acceptance_that_decays_is_named() -> None:
    watch, drafts, accepted = Watch(), 0, 0
    remarks = []
    for number, length in enumerate([0, 6, 6, 5, 3, 2]):
        drafts, accepted = drafts + 100, accepted + 100 * length
        remarks.append(watch.see(look(float(number), number, drafts=drafts, accepted=accepted)).remark)
    assert remarks[:4] == [""] * 4
    assert all(remark.startswith("DECAYED: acceptance length was 7.0") for remark in remarks[4:])


def test_an_engine_that_works_on_and_makes_nothing_hangs() -> None:
    watch = Watch()
    remarks = [watch.see(look(float(number), 50)).remark for number in range(SILENT_LOOKS + 1)]
    assert remarks[:-1] == [""] * SILENT_LOOKS
    assert remarks[-1].startswith("HANGS: 1 running requests")
    # an idle one does not
    idle = Watch()
    assert not any(idle.see(look(float(number), 50, running=0)).remark for number in range(10))


def test_an_engine_that_counts_a_long_answer_at_its_end_does_not_hang() -> None:
    watch, looks = Watch(), range(2 * SILENT_LOOKS)
    assert not any(watch.see(look(float(number), 50, computed=10 * number)).remark for number in looks)


def test_a_restart_is_named_and_counted() -> None:
    watch = Watch()
    watch.see(look(0.0, 1000))
    assert watch.see(look(1.0, 5, who="2")).remark == "RESTARTED: read why with `dflash-deploy logs`"
    assert watch.see(Reading(2.0, "restarting", "3", None)).state == "restarting"
    assert watch.see(Reading(3.0, "running", "4", None)).remark.startswith("RESTARTED, 3 times")
    assert watch.see(Reading(4.0, "running", "4", None)).state == "not responding"


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50), st.booleans()), max_size=50))
def test_nothing_is_said_of_an_engine_that_makes_tokens_as_before(steps: list[tuple[int, int, bool]]) -> None:
    watch, tokens, drafts = Watch(), 0, 0
    for number, (made, drafted, busy) in enumerate(steps):
        tokens, drafts = tokens + made + 1, drafts + drafted
        line = watch.see(look(float(number), tokens, drafts=drafts, accepted=drafts * 3, running=int(busy)))
        assert line.remark == ""
        assert line.tokens_per_second is None or line.tokens_per_second >= 1
