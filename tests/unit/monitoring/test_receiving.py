"""Receivers of alerts, the count of what they accepted, and the times at which alerts fired."""

from datetime import UTC, datetime, timedelta

import pytest
import yaml

from dflash_deploy.errors import BadInput
from dflash_deploy.features.monitoring.alerted import _spans
from dflash_deploy.features.monitoring.api import LOOK_BACK, Notifications
from dflash_deploy.features.monitoring.export import receivers
from dflash_deploy.features.monitoring.files import CONFIG_FILE, RECEIVER_FILES, alertmanager_files

BEGAN = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("server", "starttls"), [("smtp.example.com:587", True), ("smtp.example.com:465", False), ("127.0.0.1:25", False)]
)
def test_starttls_is_required_where_tls_does_not_come_first(server: str, starttls: bool) -> None:
    files = alertmanager_files(receivers(mail="a@example.com", smtp=server))
    (config,) = yaml.safe_load(files[CONFIG_FILE])["receivers"][0]["email_configs"]
    assert config["require_tls"] is starttls
    assert set(files) <= set(RECEIVER_FILES)


def test_a_password_in_the_name_of_a_mail_server_is_not_repeated() -> None:
    with pytest.raises(BadInput) as raised:
        receivers(mail="a@example.com", smtp="user:a-password@box:25")
    assert "a-password" not in raised.value.message + (raised.value.hint or "")


def test_each_kind_of_receiver_is_counted_by_itself() -> None:
    before = Notifications({"webhook": 3, "email": 1}, {"webhook": 0, "email": 2})
    now = Notifications({"webhook": 5, "email": 1}, {"webhook": 0, "email": 3})
    assert now.since(before) == Notifications({"webhook": 2, "email": 0}, {"webhook": 0, "email": 1})


@pytest.mark.parametrize("step", [15, LOOK_BACK + 60])
def test_times_without_a_gap_are_one_event(step: int) -> None:
    begin = BEGAN.timestamp()
    times = [begin, begin + step, begin + 10 * step, begin + 20 * step]
    window = (BEGAN, BEGAN + timedelta(seconds=20 * step))
    later = step if step <= LOOK_BACK else 0
    assert [(one.at.timestamp() - begin, one.text) for one in _spans("A", "b:1", times, step, window)] == [
        (0, "A already fires at b:1"),
        (step + later, "A has ended at b:1"),
        (10 * step, "A fires at b:1"),
        (10 * step + later, "A has ended at b:1"),
        (20 * step, "A fires at b:1"),
    ]
