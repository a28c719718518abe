"""A step that cannot finish says so, with who waits for whom."""

from __future__ import annotations

import pytest

from opus_sdn.whatif.engine import replay
from opus_sdn.whatif.errors import CannotFinishError
from opus_sdn.whatif.scenario import Mode
from tests.whatif.cases import MICROBATCHES, scenario


@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("delay_ms", [50, 100])
def test_votes_per_group_hang_the_microbatched_step_and_the_circle_is_named(
    delay_ms: int, exact: bool
) -> None:
    with pytest.raises(CannotFinishError) as hang:
        replay(scenario(MICROBATCHES, Mode.ON_DEMAND, delay_ms), exact=exact)
    cycle = hang.value.cycle
    assert hang.value.unfinished == 32
    assert len(cycle) >= 2
    for wait, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        assert wait.waits_for == following.rank
    text = str(hang.value)
    assert "the step cannot finish" in text
    for wait in cycle:
        assert f"rank {wait.rank} waits for rank {wait.waits_for}" in text
        assert wait.operation in text
        assert wait.connection in text
