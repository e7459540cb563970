"""The report as JUnit XML, for CI systems."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

from dflash_deploy.checks.run import CheckReport

_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even escaped."""


def junit(report: CheckReport, redact: Callable[[str], str]) -> str:
    """Return JUnit XML with one test case per check; every text goes through `redact`."""

    def clean(text: str) -> str:
        return _NOT_IN_XML.sub("?", redact(text))

    suite = ElementTree.Element(
        "testsuite",
        name="dflash-deploy test",
        tests=str(len(report.checks)),
        failures=str(len(report.failed)),
        skipped=str(len(report.skipped)),
        errors="0",
        time=f"{sum(check.seconds for check in report.checks):.3f}",
    )
    for check in report.checks:
        case = ElementTree.SubElement(
            suite, "testcase", classname="dflash-deploy.test", name=check.name, time=f"{check.seconds:.3f}"
        )
        if check.status == "failed":
            failure = ElementTree.SubElement(case, "failure", message=clean(check.got))
            failure.text = clean(f"asked: {check.asked}\ngot: {check.got}\nhint: {check.hint}")
        elif check.status == "skipped":
            ElementTree.SubElement(case, "skipped", message=clean(check.got))
        else:
            ElementTree.SubElement(case, "system-out").text = clean(f"asked: {check.asked}\ngot: {check.got}")
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
