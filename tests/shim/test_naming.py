"""Group names that all members agree on, and what the wire makes of them."""

from __future__ import annotations

import re

import pytest

from opus_sdn.shim.naming import (
    dimension,
    dimension_by_use,
    group_name,
    pair_stream,
    rank_list,
    stride,
)

NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@pytest.mark.parametrize(
    ("ranks", "ordinal", "wanted"),
    [
        ((3,), 0, "ranks-3.0"),
        ((0, 4), 1, "ranks-0-4.1"),
        (tuple(range(8)), 0, "ranks-0to7.0"),
        (tuple(range(1, 16, 2)), 2, "ranks-1to15by2.2"),
        ((0, 1, 3), 0, "ranks-0-1-3.0"),
    ],
)
def test_a_group_is_named_by_its_ranks_and_its_ordinal(
    ranks: tuple[int, ...], ordinal: int, wanted: str
) -> None:
    assert group_name(ranks, ordinal) == wanted


def test_long_irregular_rank_lists_get_short_names_that_differ() -> None:
    lists = [tuple(range(k, 400)) + tuple(range(401 + k, 800)) for k in range(1, 30)]
    names = {group_name(ranks, 0) for ranks in lists}
    assert len(names) == len(lists)
    assert all(NAME.fullmatch(name) for name in names)


@pytest.mark.parametrize(
    ("ranks", "wanted"),
    [
        ((0, 1, 2, 3), "world"),
        ((0, 2), [0, 2]),
        ((0, 1, 2), {"start": 0, "stop": 3, "step": 1}),
        ((1, 0, 2), [1, 0, 2]),
        ((0, 1, 3), [0, 1, 3]),
    ],
)
def test_rank_lists_are_sent_in_their_shortest_form(ranks: tuple[int, ...], wanted: object) -> None:
    assert rank_list(ranks, world=4) == wanted


def test_a_descending_list_has_no_stride() -> None:
    assert stride((2, 1, 0)) is None
    assert stride((1, 1)) is None
    assert stride((5, 9, 13)) == 4


@pytest.mark.parametrize(
    ("description", "wanted"),
    [
        ("mesh_pp", "pp"),
        ("mesh_dp_shard", "dp_shard"),
        ("mesh_", "other"),
        ("default_pg", "world"),
        ("undefined", "other"),
        ("", "other"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "TENSOR_MODEL_PARALLEL_GROUP"),
        ("mesh_" + "x" * 100, "x" * 64),
    ],
)
def test_the_dimension_is_read_from_torchs_description(description: str, wanted: str) -> None:
    assert dimension(description) == wanted


def test_both_directions_of_a_pair_share_a_connection_named_in_group_order() -> None:
    there = pair_stream("g", (4, 2, 0), source=2, destination=4)
    back = pair_stream("g", (4, 2, 0), source=4, destination=2)
    assert there.connection == back.connection == "g:4-2"
    assert (there.source, there.destination, back.source, back.destination) == (2, 4, 4, 2)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("send", "pp"),
        ("recv", "pp"),
        ("all_gather_single", "dp_shard"),
        ("_allgather_base", "dp_shard"),
        ("reduce_scatter_single", "dp_shard"),
        ("reduce_scatter_tensor_coalesced", "dp_shard"),
        ("all_to_all_single", "ep"),
        ("alltoall_base", "ep"),
        ("allreduce", "dp"),
        ("allreduce_coalesced", "dp"),
        ("allgather", "other"),
        ("barrier", "other"),
    ],
)
def test_where_nobody_says_the_dimension_its_first_operation_does(kind: str, wanted: str) -> None:
    assert dimension_by_use(kind) == wanted
