"""How far clocks are apart, from questions whose true answer is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opus_sdn.trace.clocks import offset

US = 1000


def test_a_question_bounds_the_offset_by_half_its_round_trip() -> None:
    found = offset([(1_000_000, 1_200_000, 5_100_000)], resolution_ns=0)
    assert found is not None
    assert (found.ns, found.error_ns) == (4_000_000, 100_000)


def test_without_a_question_nothing_is_known() -> None:
    assert offset([]) is None


@given(
    st.integers(-(10**18), 10**18),
    st.lists(
        st.tuples(st.integers(0, 10**12), st.integers(0, 10**7), st.integers(0, 10**7)),
        min_size=1,
        max_size=9,
    ),
)
def test_the_true_offset_is_within_the_error_however_unequal_the_two_ways_are(
    true: int, trips: list[tuple[int, int, int]]
) -> None:
    # answers are in whole microseconds, as the controller gives them
    questions = [(at, at + there + back, (at + there + true) // US * US) for at, there, back in trips]
    found = offset(questions)
    assert found is not None
    assert abs(found.ns - true) <= found.error_ns
    assert found.error_ns <= min(there + back for _, there, back in trips) // 2 + US


def test_where_no_offset_fits_all_the_quickest_answer_counts() -> None:
    set_back = [(0, 1_000_000, 500_000), (2_000_000, 2_000_100, 900_000_050)]
    found = offset(set_back, resolution_ns=0)
    assert found is not None
    assert (found.ns, found.error_ns) == (898_000_000, 50)
