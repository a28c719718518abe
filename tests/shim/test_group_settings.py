"""A file that says which dimension a group is, by its ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opus_sdn.shim.errors import SettingsError
from opus_sdn.shim.group_settings import label_of, labels_in


def written(folder: Path, content: object) -> dict[str, str]:
    file = folder / "groups.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return {"OPUS_GROUPS": str(file)}


def test_ranks_may_be_a_list_a_stride_or_the_world(tmp_path: Path) -> None:
    labels = labels_in(
        written(
            tmp_path,
            [
                {"ranks": [4, 0], "dimension": "pp"},
                {"ranks": {"start": 1, "stop": 8, "step": 2}, "dimension": "dp_shard"},
                {"ranks": "world", "dimension": "dp"},
            ],
        )
    )
    assert label_of(labels, [4, 0], 8) == "pp"
    assert label_of(labels, [0, 4], 8) is None  # the order is the ring's
    assert label_of(labels, (1, 3, 5, 7), 8) == "dp_shard"
    assert label_of(labels, range(8), 8) == "dp"
    assert label_of(labels, range(4), 8) is None
    assert labels_in({}) == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "it cannot be read"),
        ({"ranks": [0]}, "it holds a dict"),
        ([{"ranks": [0, 1]}], "entry {'ranks': [0, 1]}"),
        ([{"ranks": [0, 1], "dimension": "pp", "x": 1}], "'x': 1"),
        ([{"ranks": [0, 0], "dimension": "pp"}], "entry"),
        ([{"ranks": [0, -1], "dimension": "pp"}], "entry"),
        ([{"ranks": [True], "dimension": "pp"}], "entry"),
        ([{"ranks": [], "dimension": "pp"}], "entry"),
        ([{"ranks": {"start": 0, "stop": 4, "step": 0}, "dimension": "pp"}], "entry"),
        ([{"ranks": {"start": 0, "stop": 4}, "dimension": "pp"}], "entry"),
        ([{"ranks": {"start": 0, "stop": 1 << 40, "step": 1}, "dimension": "pp"}], "entry"),
        ([{"ranks": [0, 1], "dimension": ""}], "entry"),
        ([{"ranks": [0, 1], "dimension": 7}], "entry"),
        ([{"ranks": [0, 1], "dimension": "pp"}, {"ranks": [0, 1], "dimension": "dp"}], "'dp'"),
        ("[" + " " * (1 << 20) + "]", "it is larger than 1048576 bytes"),
    ],
)
def test_what_cannot_be_used_is_named_with_what_would_be_right(
    tmp_path: Path, content: object, words: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        labels_in(written(tmp_path, content))
    text = str(refused.value)
    assert text.startswith("OPUS_GROUPS: is ")
    assert words in text
    assert 'use a JSON list of {"ranks": [0, 4], "dimension": "pp"}' in text


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match="OPUS_GROUPS: is '/nowhere': it cannot be read"):
        labels_in({"OPUS_GROUPS": "/nowhere"})
