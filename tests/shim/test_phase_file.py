"""Phase tables on disk: what was learned is read back as it was; anything else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.shim.errors import SettingsError
from opus_sdn.shim.operations import STEP_END
from opus_sdn.shim.phase_file import load_published, load_table, save_table
from opus_sdn.shim.phases import PhaseTable, Position, learn
from tests.shim.steps import WHATS, history


def test_a_table_that_was_learned_is_read_back_as_it_was(tmp_path: Path) -> None:
    table = learn(history("t! R! R! m! Q! | " * 4), 4)
    assert table is not None
    pattern = str(tmp_path / "deep" / "rank{rank}.json")
    save_table(pattern, 3, table)
    assert load_table(pattern, 3) == table
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["rank3.json"]


def test_the_form_of_the_file_is_this(tmp_path: Path) -> None:
    positions = (
        Position("tp-0"),
        Position(WHATS["R"].track, 2, 3),
        Position(WHATS["m"].track),
        Position(STEP_END),
    )
    save_table(str(tmp_path / "t"), 0, PhaseTable(positions))
    assert json.loads((tmp_path / "t").read_text()) == {
        "format": "opus-phase-table",
        "version": 1,
        "rank": 0,
        "positions": [
            {"group": "tp-0"},
            {"connection": "dp-0", "closed": 2, "quiet": 3},
            {"connection": "pp-0:0-1", "source": 0, "destination": 1},
            {"step": True},
        ],
    }


def test_a_published_table_becomes_phases_by_dimension(tmp_path: Path) -> None:
    lines = (
        "PP start_backend: 0 start_idx: 0 end_backend: 0 end_idx: 0 len: 1\n"
        "DP start_backend: 1 start_idx: 0 end_backend: 1 end_idx: 2 len: 3\n"
    )
    (tmp_path / "pattern_1").write_text(lines)
    table = load_published(str(tmp_path / "pattern"), 1)
    assert table.coarse
    assert [(p.track, p.closed, p.quiet) for p in table.positions] == [
        ("dimension:pp", 1, 1),
        ("dimension:dp", 1, 3),
        ("dimension:dp", 1, 2),
        ("dimension:dp", 1, 1),
    ]
    with pytest.raises(SettingsError, match="COMM_PATTERN_PATH: no table of rank 2"):
        load_published(str(tmp_path / "pattern"), 2)


GOOD = {"connection": "dp-0", "closed": 1, "quiet": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "wanted an object of format 'opus-phase-table' and version 1"),
        ({"version": 2}, "version 1"),
        ({"rank": 1}, "rank: 1; wanted 0"),
        ({"positions": []}, "positions: wanted a list of 1 to 65536"),
        ({"positions": [7]}, r"positions\[0\]: 7; wanted an object"),
        ({"positions": [GOOD, {"step": False}]}, r"positions\[1\]: has the fields \['step'\]"),
        ({"positions": [GOOD | {"length": 2}]}, "wanted .* a connection with closed and quiet"),
        ({"positions": [GOOD | {"closed": 0}]}, r"positions\[0\].closed: 0; wanted a whole number, 1 to"),
        ({"positions": [GOOD | {"quiet": True}]}, r"positions\[0\].quiet: True; wanted a whole number"),
        ({"positions": [GOOD | {"source": 1}]}, "has the fields"),
        ({"positions": [{"group": ""}]}, r"positions\[0\].group: ''; wanted a name"),
    ],
)
def test_a_file_that_is_no_table_of_this_rank_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    said = {"format": "opus-phase-table", "version": 1, "rank": 0, "positions": [GOOD]}
    (tmp_path / "t.json").write_text(json.dumps(said | change))
    with pytest.raises(SettingsError, match=words) as refused:
        load_table(str(tmp_path / "t.json"), 0)
    assert str(tmp_path / "t.json") in str(refused.value)


def test_a_file_that_is_not_there_or_not_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load_table(str(tmp_path / "rank{rank}.json"), 0)
    (tmp_path / "rank0.json").write_text("[" * 100_000)
    with pytest.raises(SettingsError, match="OPUS_PHASE_TABLE"):
        load_table(str(tmp_path / "rank{rank}.json"), 0)
