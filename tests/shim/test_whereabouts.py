"""A rank that knows several controllers finds the one that leads, and finds the next one."""

from __future__ import annotations

import pytest

from opus_sdn.shim.settings import Address, SettingsError, from_environ
from opus_sdn.shim.whereabouts import Whereabouts

A, B, C = (Address(False, "10.0.0.1", port) for port in (8700, 8701, 8702))
SETTINGS = {"OPUS_JOB": "j", "OPUS_HOST": "h", "LOCAL_RANK": "0"}


def test_it_goes_where_it_is_told_that_the_leader_is() -> None:
    where = Whereabouts(A, (B,))
    assert where.leads(str(C))
    assert where.now == C
    assert not where.leads(str(C)), "it is there already"


@pytest.mark.parametrize("url", [None, "", "nowhere", "ftp://x:1", "http://x", "http://[::1", 7])
def test_a_leader_without_a_usable_address_changes_nothing(url: object) -> None:
    where = Whereabouts(A)
    assert not where.leads(url)
    assert where.now == A


def test_it_tries_one_after_the_other_while_nobody_answers() -> None:
    where = Whereabouts(A, (B, C))
    seen = []
    for _ in range(4):
        seen.append(where.now)
        where.useless(where.now)
    assert seen == [A, B, C, A]


def test_what_is_said_of_one_that_is_left_already_changes_nothing() -> None:
    where = Whereabouts(A, (B, C))
    where.useless(A)
    where.useless(A)
    assert where.now == B


def test_a_leader_that_was_not_among_those_given_is_left_for_the_first_of_these() -> None:
    where = Whereabouts(A, (B,))
    where.leads(str(C))
    where.useless(C)
    assert where.now == A


def test_one_alone_is_asked_again_and_again() -> None:
    where = Whereabouts(A)
    where.useless(A)
    assert where.now == A


def test_several_controllers_are_given_between_commas() -> None:
    settings = from_environ({**SETTINGS, "OPUS_CONTROLLER": f"{A}, {B},{C}"})
    assert (settings.controller, settings.replicas) == (A, (B, C))
    with pytest.raises(SettingsError, match="OPUS_CONTROLLER: is 'http://nowhere'"):
        from_environ({**SETTINGS, "OPUS_CONTROLLER": f"{A},http://nowhere"})
