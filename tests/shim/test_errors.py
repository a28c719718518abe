"""The shim's errors as programs meet them: RuntimeErrors that survive a trip to another process."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from opus_sdn.shim.errors import ControllerError, OpusError, OpusInitError, OpusJobFailed, OpusRefusedError

ERRORS = [
    OpusJobFailed("rank-lost", "rank 3 died", 3, 7, {"how": "signal 9"}),
    OpusRefusedError("unroutable", "no rail joins them"),
    OpusInitError("unknown-place", "no such host"),
    ControllerError("not-found", 404, "no such job", {"job": "x"}),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_can_be_sent_to_another_process_with_all_it_says(error: OpusError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
    assert isinstance(copy, RuntimeError)


def test_a_failed_jobs_error_says_problem_cause_and_incarnation_and_is_copied_for_each_thread() -> None:
    failed = OpusJobFailed("rank-lost", "rank 3 died", 3, 7)
    assert str(failed) == "rank-lost: rank 3 died (incarnation 7)"
    assert failed.again() is not failed
    assert str(failed.again()) == str(failed)


def test_whoever_needs_no_torch_gets_none() -> None:
    modules = ("session", "settings", "enrolment", "naming", "autoload", "witness_client")
    imports = "; ".join(f"import opus_sdn.shim.{name}" for name in modules)
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
