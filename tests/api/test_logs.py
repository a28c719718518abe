"""One line per log record, with its values as words that can be searched for."""

from __future__ import annotations

import logging
import sys

from opus_sdn.api.logs import KeyValueFormatter


def line(message: str, exc_info: object = None, **values: object) -> str:
    record = logging.LogRecord("opus_sdn.part", logging.WARNING, "", 0, message, (), exc_info)  # type: ignore[arg-type]
    record.created = 1_700_000_000.25
    vars(record).update(values)
    return KeyValueFormatter().format(record)


def test_values_follow_the_constant_message() -> None:
    assert line("device step failed", switch="ocs0", step=3, detail='said "no" twice') == (
        "2023-11-14T22:13:20.250000Z warning opus_sdn.part device step failed switch=ocs0 step=3 "
        'detail="said \\"no\\" twice"'
    )


def test_a_value_cannot_forge_a_line() -> None:
    assert "\n" not in line("refused", detail="x\n2023-11-14T22:13:20Z info forged")


def test_a_traceback_follows_its_line() -> None:
    try:
        raise RuntimeError("planted")
    except RuntimeError:
        text = line("a pass failed", sys.exc_info())
    first, *rest = text.splitlines()
    assert first.endswith("a pass failed")
    assert rest[-1] == "RuntimeError: planted"
