"""Values of the core come back from their text exactly, and other text is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Dimension, JobSpec, Place, PortChoice, Stream, WorldGroup
from opus_sdn.store import codec
from opus_sdn.store.base import StoreError
from tests.store.world import spec

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
COUNT = st.integers(0, 2**53)
SPECS = st.builds(
    JobSpec,
    name=TEXT,
    owner=TEXT,
    nonce=TEXT,
    placement=st.lists(st.builds(Place, TEXT, COUNT), max_size=3).map(tuple),
    dimensions=st.lists(st.builds(Dimension, TEXT, COUNT), max_size=3).map(tuple),
    port_choice=st.sampled_from(PortChoice),
    world_group=st.sampled_from(WorldGroup),
    force_scale_out=st.booleans(),
    deadline_s=st.floats(0, 1e6),
    initial_topology=st.none() | TEXT,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(SPECS)
def test_a_job_comes_back_as_it_was_declared(declared: JobSpec) -> None:
    text = codec.spec_to_json(declared)
    assert codec.spec_from_json(text, declared.name) == declared
    fields = {field.name for field in dataclasses.fields(JobSpec)}
    assert set(json.loads(text)) == fields - ({"retry_budget"} if declared.retry_budget is None else set())


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_data_comes_back_as_it_was_and_has_one_form(data: dict[str, object]) -> None:
    text = codec.to_json(data, "data")
    assert codec.data_from_json(text, "data") == data
    backwards = dict(reversed(data.items()))
    assert codec.to_json(backwards, "data") == text
    assert "\n" not in text


def changed(**fields: Any) -> str:
    return codec.to_json({**json.loads(codec.spec_to_json(spec())), **fields}, "spec")


def without(name: str) -> str:
    fields = json.loads(codec.spec_to_json(spec()))
    del fields[name]
    return codec.to_json(fields, "spec")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Invalid JSON"),
        ("[]", "Input should be"),
        (changed(colour="red"), "unknown"),
        (without("port_choice"), "missing"),
        (without("owner"), "owner: "),
        (changed(owner=5), "owner: "),
        (changed(force_scale_out=0), "force_scale_out: "),
        (changed(deadline_s="30"), "deadline_s: "),
        (changed(port_choice="best"), "port_choice: "),
        (changed(placement=[{"host": "a", "slot": True}]), "placement.0.slot: "),
        (codec.spec_to_json(spec()) + " ", "not in the written form"),
    ],
)
def test_a_job_that_is_not_stored_as_it_is_written_is_refused(text: str, said: str) -> None:
    with pytest.raises(StoreError, match=r"spec of job 'llama' is stored as .* cannot be read") as refused:
        codec.spec_from_json(text, "llama")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (codec.numbers_from_json, "[1,true]"),
        (codec.numbers_from_json, '["1"]'),
        (codec.texts_from_json, "[1]"),
        (codec.pairs_from_json, "[[1]]"),
        (codec.pairs_from_json, "[[1,2,3]]"),
        (codec.data_from_json, "[]"),
        (codec.data_from_json, "{"),
    ],
)
def test_lists_and_data_of_another_shape_are_refused(read: Any, text: str) -> None:
    with pytest.raises(StoreError, match=r"ranks is stored as .* cannot be read"):
        read(text, "ranks")


def test_lists_come_back_in_their_order() -> None:
    assert codec.numbers_from_json(codec.numbers_to_json((3, 1, 2)), "ranks") == (3, 1, 2)
    assert codec.texts_from_json(codec.texts_to_json(("b", "a")), "names") == ("b", "a")
    pairs = (CrossConnect(5, 1), CrossConnect(0, 2))
    assert codec.pairs_from_json(codec.pairs_to_json(pairs), "pairs") == pairs


@pytest.mark.parametrize("stream", [Stream("dp0"), Stream("pp0:0-1", 0, 1), Stream("pp0:0-1", 1, 0)])
def test_a_stream_comes_back_from_its_columns(stream: Stream) -> None:
    assert codec.stream_of(*codec.stream_key(stream)) == stream
