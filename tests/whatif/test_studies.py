"""Studies: files that say what would fit, limits that hold when simulated again, and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from opus_sdn.whatif.cost.prices import SYSTEMS, PriceFile, merged
from opus_sdn.whatif.cost.report import cost_document
from opus_sdn.whatif.engine import load_step, make_scenario, replay
from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.figures.f09 import Parameters as RecoveryParameters
from opus_sdn.whatif.inputs.checked import read_checked
from opus_sdn.whatif.inputs.schedules import read_schedules
from opus_sdn.whatif.inputs.text import read_yaml
from opus_sdn.whatif.page.study import study_page
from opus_sdn.whatif.report import document
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.study.limits import FINE, FINEST_MS, bracket
from opus_sdn.whatif.study.phases import limiting_changes
from opus_sdn.whatif.study.prepare import job_of, prepare
from opus_sdn.whatif.study.run import run_study
from opus_sdn.whatif.study.runs import Runs
from opus_sdn.whatif.study.schema import Study, Sweep, read_study
from opus_sdn.whatif.workload import ACCELERATORS, CARDS, Parallelism
from opus_sdn.whatif.workload.plan import check_plan

EXAMPLES = Path(__file__).parents[2] / "examples" / "studies"
TRACE = Path(__file__).parent / "data" / "dp2pp2tp2"
SMALL: dict[str, Any] = {
    "model": {"name": "small", "layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096, "vocab": 32_000},
    "accelerator": "h200",
    "parallelism": {"dp": 2, "pp": 2, "tp": 2},
    "batch": {"size": 8, "sequence": 1024, "microbatches": 2},
    "efficiency": 0.01,  # steps of about a second, so that milliseconds are little
    "fabric": {"switch_ms": 10, "control_ms": 1, "link_up_ms": 3},
}

OWN_GPU: dict[str, Any] = {
    "name": "own",
    "tflops": 100.0,
    "memory_gbps": 1000.0,
    "memory_gb": 80.0,
    "scale_up_gbps": 100.0,
    "scale_out_gbps": 10.0,
    "domain": 4,
    "source": "a test",
}


def written(folder: Path, **changes: object) -> Path:
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(SMALL | changes))
    return file


def study(folder: Path, **changes: object) -> Study:
    return read_study(written(folder, **changes))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A small study with everything in it."""
    folder = tmp_path_factory.mktemp("small")
    found = run_study(
        study(
            folder,
            sweep={"switch_ms": [5, 20, 10], "scale_out_gbps": [25, 50]},
            advice={"overhead_percent": 20},
            cost={"system": "h200"},
        ),
        jobs=1,
    )
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modle": "llama3-8b"}, "modle: no such key; did you mean 'modes' or 'model'?"),
        ({"model": "llama4"}, ", ".join(CARDS)),
        ({"accelerator": "h300"}, ", ".join(ACCELERATORS)),
        ({"parallelism": {"dp": 2, "pp": 2, "tp": 3}}, "parallelism.tp is 3: 8 heads"),
        ({"parallelism": {"dp": 2, "pp": 5, "tp": 2}}, "parallelism.pp is 5: the model has 4 layers"),
        ({"parallelism": {"dp": 2, "pp": 2, "tp": 2, "sp": 2}}, "parallelism.sp: no such key"),
        ({"batch": {"size": 9, "sequence": 1024, "microbatches": 2}}, "[8, 12] would"),
        (
            {"hosts": 8},
            "hosts is 8: the plan fills 4 (dp 2 x pp 2 x cp 1, 2 GPUs each): parallelism.dp 4, or hosts 4",
        ),
        (
            {"gpus_per_host": 4},
            "gpus_per_host is 4: a host holds one tensor-parallel group: parallelism.tp 4 would",
        ),
        ({"model": SMALL["model"] | {"layers": "4"}}, "model.layers is '4': input should be a valid integer"),
        ({"fabric": {"switch_ms": -1}}, "fabric.switch_ms is -1"),
        ({"modes": ["ideal"]}, "modes.0 is 'ideal': input should be 'on-demand' or 'provision'"),
        ({"options": {"colour": 1}}, "colour is 1: no such option; known: control_ms"),
        ({"sweep": {"switch_ms": [1] * 65}}, "sweep.switch_ms is"),
        ({"preset": "exact"}, "preset is 'exact': it must be one of stg, physical"),
        ({"fabric": {"scale_out_gbps": 1e-300}}, "fabric.scale_out_gbps is 1e-300"),
        ({"efficiency": 1e-300}, "efficiency is 1e-300"),
        (
            {"accelerator": OWN_GPU | {"tflops": 0.0}},
            "study.yaml, accelerator.tflops is 0.0: it must lie between",
        ),
        ({"accelerator": OWN_GPU | {"memory_gbps": -1.0}}, "accelerator.memory_gbps is -1.0: it must lie"),
        ({"accelerator": OWN_GPU | {"scale_out_gbps": 1e-300}}, "accelerator.scale_out_gbps is 1e-300"),
        ({"accelerator": OWN_GPU | {"domain": 0}}, "accelerator.domain is 0: the GPUs that share"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_would_fit(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    file = written(tmp_path, **changes)
    with pytest.raises(InputError) as refused:
        run_study(read_study(file), file, jobs=1)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: a\nbatch: {size: 8}\ntitle: b\n", "title: the key stands there twice, in lines 1 and 3"),
        (
            "batch: {size: 8, sequence: 1024, size: 16}\n",
            "size: the key stands there twice, in lines 1 and 1",
        ),
        ("options: [{a: 1}, {b: {c: 1, c: 1}}]\n", "c: the key stands there twice"),
    ],
)
def test_a_key_that_stands_twice_is_refused_where_one_of_them_would_be_ignored(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_yaml(file)


def test_a_mapping_may_change_what_it_merges_and_may_hold_itself(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, x: 4}\nd: &d {own: *d}\n")
    found = read_yaml(file)
    assert (found["b"], found["c"]) == ({"x": 3, "y": 2}, {"x": 4, "y": 2})
    assert found["d"]["own"] is found["d"]


@given(st.floats(0, 3000), st.floats(1, 2000))
def test_a_limit_is_bracketed_finely(limit: float, largest: float) -> None:
    low, high = bracket(lambda value: value <= limit, largest)
    assert low is not None
    assert low <= limit
    if high is None:
        assert low == largest
    else:
        assert limit < high <= largest
        assert high - low <= max(FINEST_MS, FINE * high)


def test_what_never_fits_has_no_limit() -> None:
    assert bracket(lambda value: False, 100) == (None, 0.0)


def test_a_limit_holds_when_it_is_simulated_by_itself(small: dict[str, Any], tmp_path: Path) -> None:
    prepared = prepare(study(tmp_path), "study")

    def overhead(delay_ms: float, mode: str) -> float:
        def step(mode: Mode, delay: float) -> int:
            options = {"control_ms": 1.0}
            scenario = make_scenario(*prepared.everything, mode=mode, delay_ns=delay * 1e6, options=options)
            return replay(scenario, semantics="opus").finish_ns

        return 100 * (step(Mode(mode), delay_ms) / step(Mode.STATIC, 0) - 1)

    limits = small["advice"]["limits"]
    assert [limit["mode"] for limit in limits] == ["on-demand", "provision"]
    for limit in limits:
        assert overhead(limit["largest_ms"], limit["mode"]) <= 20 < overhead(limit["over_ms"], limit["mode"])
        # The study's link-up takes 3 of these ms, or its optics 10.
        assert limit["largest_switch_ms"] == pytest.approx(max(0, limit["largest_ms"] - 3))
        assert limit["largest_link_up_ms"] == pytest.approx(max(0, limit["largest_ms"] - 10))


def test_alternatives_change_what_is_known_of_them(small: dict[str, Any]) -> None:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for outcome in small["advice"]["alternatives"]:
        by_name.setdefault(outcome["name"], []).append(outcome)
    studied = by_name["as studied"]
    assert len(studied) == 2  # on the fabric as it is, and where the limit is passed
    assert all(outcome["overhead_percent"] > 0 for outcome in studied)
    for outcome in by_name["a second pair of ports per GPU, one for rings and one for messages"]:
        assert outcome["step_ms"] == outcome["reference_ms"]  # nothing is ever moved
    for outcome in by_name["rings on the ports that no pipeline link needs"]:
        # Nothing is moved but at the beginning of the step, for the first message.
        assert outcome["gain_percent"] > 0
        assert outcome["step_ms"] - outcome["reference_ms"] <= outcome["delay_ms"] + 1
    halved = by_name["one topology for the whole job: rings and messages have half of every port each"]
    assert all(outcome["step_ms"] > outcome["reference_ms"] for outcome in halved)
    assert len({outcome["step_ms"] for outcome in halved}) == 1  # whatever the delay
    deferred = by_name["reductions behind the last message"][0]
    assert deferred["reference_ms"] != studied[0]["reference_ms"]  # its own order of operations
    assert by_name["schedule interleaved"][0]["step_ms"] is not None
    assert by_name["schedule zero-bubble"][0]["overlapping"] >= 0
    assert {name for name in by_name if name.startswith("schedule")} == {
        "schedule gpipe",
        "schedule interleaved",
        "schedule zero-bubble",
    }


def test_the_windows_say_what_a_switch_stalls(small: dict[str, Any]) -> None:
    assert {each["pair"] for each in small["windows"]} == {"pp to dp", "dp to pp"}
    for each in small["windows"]:
        lengths = each["lengths_ms"]
        assert (each["count"], each["smallest_ms"], each["largest_ms"]) == (
            len(lengths), lengths[0], lengths[-1],
        )  # fmt: skip
        # Optics, link-up and control of the study: 10 + 3 + 1 ms.
        assert each["stall_ms"] == pytest.approx(sum(max(0, 14 - length) for length in lengths))
        assert each["overlapping"] == sum(length < 0 for length in lengths)


def test_the_sensitivity_agrees_with_the_sweep(small: dict[str, Any]) -> None:
    rows = {(row["input"], row["value"]): row for row in small["sensitivity"]["rows"]}
    swept = {(row["switch_ms"], row["mode"]): row["overhead_percent"] for row in small["sweeps"]["switch_ms"]}
    assert rows["as studied", ""]["overhead_percent"] == swept[10, "provision"]
    assert rows["switch_ms", "5 ms"]["overhead_percent"] == swept[5, "provision"]
    assert rows["switch_ms", "20 ms"]["overhead_percent"] == swept[20, "provision"]
    assert {name for name, _ in rows} >= {"GPU speed", "microbatches", "sequence", "link_up_ms", "control_ms"}


def test_the_published_step_waits_for_what_is_known_to_limit_it() -> None:
    """On demand both directions of the pipeline wait, provisioned only the gradients sent back."""
    step = load_step(TRACE / "workload_et.tar.xz", TRACE / "workload.json", TRACE / "system.json")
    schedules = read_schedules(TRACE / "schedules.txt.xz")
    found = {}
    for mode in (Mode.ON_DEMAND, Mode.PROVISION):
        scenario = make_scenario(step, schedules, mode=mode, delay_ns=100e6)
        changes = limiting_changes(
            document(scenario, replay(scenario, semantics="opus")), Parallelism(2, 2, 2)
        )
        found[mode] = [(change.after, change.count) for change in changes]
        assert all(change.before.startswith("rings of stage") for change in changes)
        assert all(change.waited_ms <= 100 for change in changes)
    assert sorted(found[Mode.ON_DEMAND]) == [("gradients 1 to 0", 1), ("messages 0 to 1", 1)]
    assert found[Mode.PROVISION] == [("gradients 1 to 0", 1)]


PUBLISHED_MINIMAL_S = {
    "on-demand": {0: 62.2416, 1: 62.2436, 10: 62.2616, 50: 62.3416},
    "provision": {1: 62.2415, 10: 62.2505, 50: 62.2905},
}


def test_the_study_of_the_minimal_example_finds_the_published_values() -> None:
    rows = run_study(read_study(EXAMPLES / "minimal.yaml"), jobs=1)["sweeps"]["switch_ms"]
    found = {(row["mode"], row["switch_ms"]): row["step_ms"] / 1e3 for row in rows}
    for mode, values in PUBLISHED_MINIMAL_S.items():
        for delay, seconds in values.items():
            assert found[mode, delay] == pytest.approx(seconds, rel=1e-5)


def test_the_study_of_figure_12_finds_the_published_headline() -> None:
    asked = read_study(EXAMPLES / "figure12.yaml").model_copy(update={"sweep": Sweep.model_validate({})})
    found = {row["mode"]: row for row in run_study(asked, jobs=1)["headlines"]}
    assert found["provision"]["overhead_percent"] == pytest.approx(5.31, abs=0.005)
    assert found["provision"]["reference_ms"] == pytest.approx(11_931, abs=0.5)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_example_can_be_run(file: Path) -> None:
    if file.stem == "figure9":
        read_checked(file, RecoveryParameters)
    else:
        study = read_study(file)
        job = job_of(study, file)
        check_plan(job.model, job.parallelism, job.batch, job.preset)


def test_a_sweep_over_replicas_is_of_as_many_jobs(tmp_path: Path) -> None:
    asked = study(tmp_path, sweep={"dp": [4, 1, 2], "microbatches": [1]}, modes=["provision"], advice=None)
    found = run_study(asked, jobs=1)
    assert [row["dp"] for row in found["sweeps"]["dp"]] == [1, 2, 4]
    one, two, four = (row["step_ms"] for row in found["sweeps"]["dp"])
    assert one > two > four  # the batch stays as it is
    assert two == found["headlines"][0]["step_ms"]
    assert [row["microbatches"] for row in found["sweeps"]["microbatches"]] == [1]
    with pytest.raises(InputError, match=r"batch.size is 8: it divides among dp x microbatches, 3 x 2"):
        run_study(study(tmp_path, sweep={"dp": [3]}, advice=None), jobs=1)


@pytest.mark.parametrize(
    ("reference", "semantics", "mode", "published_like"),
    [
        ("static", "opus", Mode.STATIC, False),
        ("peer-0ms", "peer", Mode.ON_DEMAND, False),
        ("ideal", "opus", Mode.IDEAL, True),
    ],
)
def test_a_reference_is_the_step_that_it_names(
    reference: str, semantics: str, mode: Mode, published_like: bool, tmp_path: Path
) -> None:
    asked = study(tmp_path, reference=reference, advice=None)
    prepared = prepare(asked, "study")
    step, schedules = prepared.everything
    schedules = prepared.ideal(None) if published_like else schedules
    wanted = replay(make_scenario(step, schedules, mode=mode), semantics=semantics).finish_ns / 1e6
    assert {row["reference_ms"] for row in run_study(asked, jobs=1)["headlines"]} == {wanted}


def test_in_the_published_semantics_all_delays_are_one(tmp_path: Path) -> None:
    asked = study(tmp_path, semantics="peer", modes=["on-demand"], advice=None)
    prepared = prepare(asked, "study")
    scenario = make_scenario(*prepared.everything, delay_ns=14e6)
    wanted = replay(scenario, semantics="peer").finish_ns / 1e6
    assert [row["step_ms"] for row in run_study(asked, jobs=1)["headlines"]] == [wanted]


def test_prices_stand_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("nic: {usd: 100, w: 1}\n")
    cost = {"system": "gb200", "prices": "prices.yaml"}
    file = written(tmp_path, cost=cost, advice=None)
    found = run_study(read_study(file), file, jobs=1)["cost"]
    # The job's own hosts, of two GPUs, are what is priced.
    assert (found["hosts"], found["gpus"]) == (4, 8)
    assert [line["count"] for line in found["bills"][1]["lines"] if line["item"] == "NIC"] == [8]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sweep": {"dp": [2, 3]}},
            "sweep.dp is 3: then batch.size is 8: it divides among dp x microbatches, 3 x 2",
        ),
        ({"sweep": {"microbatches": [5]}}, "sweep.microbatches is 5: then batch.size is 8: it divides"),
        ({"cost": {"system": "h200", "prices": "absent.yaml"}}, "absent.yaml: cannot be read"),
    ],
)
def test_what_is_refused_is_refused_before_the_first_step_is_simulated(
    changes: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, **changes)
    simulated: list[object] = []
    monkeypatch.setattr(Runs, "replay_all", lambda *given: simulated.append(given))
    with pytest.raises(InputError) as refused:
        run_study(read_study(file), file, jobs=1)
    assert message in str(refused.value)
    assert simulated == []


def test_a_page_about_free_optics_has_a_bill_and_no_ratio(small: dict[str, Any]) -> None:
    nothing = {"usd": 0, "w": 0}
    free = PriceFile.model_validate({"transceiver": nothing, "optical_switch": {"usd_per_port": 0, "w": 0}})
    cost = cost_document(8, merged(SYSTEMS["h200"], free))
    shown = study_page(small | {"cost": cost}, "")
    assert "port of an optical switch" in shown
    assert "times as much as the photonic one" not in shown


def test_progress_only_grows_and_ends_at_the_end(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    asked = study(tmp_path, advice={"overhead_percent": 20, "sensitivity": False})
    run_study(asked, jobs=1, done=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1]


def test_a_page_holds_the_file_that_it_is_of_and_every_swept_step(small: dict[str, Any]) -> None:
    source = "title: <b>mine</b>"
    shown = study_page(small, source)
    assert "title: &lt;b&gt;mine&lt;/b&gt;" in shown
    for rows in small["sweeps"].values():
        for row in rows:
            assert f"{row['overhead_percent']:.2f}" in shown
