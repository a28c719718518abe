"""The published table format, written and read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opus_sdn.shim.legacy_table import (
    LegacyPhase,
    LegacyTableError,
    format_table,
    parse_table,
    read_table,
)
from opus_sdn.trace.compiled import compile_tables, write_tables
from tests.trace.runs import two_by_two

LINE = "PP start_backend: 1 start_idx: 0 end_backend: 1 end_idx: 3 len: 4"
number = st.integers(0, 10**9 - 1)


def test_a_line_of_the_published_form_is_read() -> None:
    assert parse_table(LINE + "\n\n", "table") == [LegacyPhase("PP", 1, 0, 1, 3, 4)]


@given(
    st.lists(
        st.builds(
            LegacyPhase, st.sampled_from(["PP", "DP"]), number, st.just(0), number, number, st.integers(1, 99)
        )
    )
)
def test_whatever_is_written_is_read_back(phases: list[LegacyPhase]) -> None:
    assert parse_table(format_table(phases), "table") == phases


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("PP start_backend: 1", "table:2: 'PP start_backend: 1'; wanted <PP|DP> start_backend: b"),
        (LINE.replace("len: 4", "len: 0"), "table:2: len is 0; wanted at least 1"),
        (LINE.replace("start_idx: 0", "start_idx: 9"), "table:2: end_idx is 3; wanted at least start_idx, 9"),
        (LINE.replace("len: 4", "len: -4"), "wanted <PP|DP>"),
    ],
)
def test_a_line_that_is_no_phase_is_named(line: str, want: str) -> None:
    with pytest.raises(LegacyTableError) as refused:
        parse_table(f"{LINE}\n{line}\n", "table")
    assert want in str(refused.value)


def test_a_recorded_run_is_compiled_into_its_phases_and_read_back(tmp_path: Path) -> None:
    tables = compile_tables(two_by_two())
    write_tables(tables, str(tmp_path / "patterns" / "comm_pattern"))
    assert read_table(str(tmp_path / "patterns" / "comm_pattern"), 2) == [
        LegacyPhase("DP", 0, 0, 0, 0, 1),
        LegacyPhase("PP", 1, 0, 1, 0, 1),
        LegacyPhase("DP", 0, 1, 0, 1, 1),
    ]
    assert len(list((tmp_path / "patterns").iterdir())) == 4


@pytest.mark.parametrize("name", ["p_3", "p.3", "p_rank3", "p_rank_3.txt", "p3", "p_3.txt", "p-3"])
def test_a_rank_finds_its_table_under_the_names_in_use(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(LINE)
    assert read_table(str(tmp_path / "p"), 3) == [LegacyPhase("PP", 1, 0, 1, 3, 4)]
    with pytest.raises(LegacyTableError, match=r"no table of rank 4 at prefix .*: there is none of .*p_4, "):
        read_table(str(tmp_path / "p"), 4)
