"""Cost and power: the published totals and ratios, bills whose lines add up, radix limits, price files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opus_sdn.whatif.cost.bill import bill
from opus_sdn.whatif.cost.fabrics import Kind, counts, rail_need
from opus_sdn.whatif.cost.prices import SYSTEMS, PriceFile, Prices, merged, system_prices
from opus_sdn.whatif.cost.report import cost_document
from opus_sdn.whatif.cost.sensitivity import sensitivity
from opus_sdn.whatif.errors import InputError

H200, GB200 = SYSTEMS["h200"], SYSTEMS["gb200"]


def test_128_h200_cost_and_draw_what_is_published() -> None:
    packet, photonic = bill(Kind.RAIL, 128, H200), bill(Kind.PHOTONIC, 128, H200)
    assert packet.usd == pytest.approx(1.048e6, rel=5e-4)
    assert packet.w == pytest.approx(32.92e3, rel=1e-9)
    assert photonic.usd == pytest.approx(0.246e6, rel=2e-3)
    assert photonic.w == pytest.approx(1.38e3, rel=1e-9)


@pytest.mark.parametrize(
    ("system", "gpus", "cost", "power"),
    [
        ("h200", 128, 4.27, 23.86),
        ("h200", 2048, 4.27, 23.86),
        ("gb200", 512, 3.17, 15.44),  # 16 domains: switches of 8 ports fit exactly
        ("gb200", 2048, 3.17, 15.44),
    ],
)
def test_the_published_ratios_hold_where_the_radix_is_exact(
    system: str, gpus: int, cost: float, power: float
) -> None:
    assert counts(Kind.RAIL, gpus, SYSTEMS[system]).exact_radix
    found = cost_document(gpus, SYSTEMS[system])["ratios"]["rail"]
    assert (round(found["cost"], 2), round(found["power"], 2)) == (cost, power)


@pytest.mark.parametrize(
    ("kind", "switches", "ports"),
    [
        (Kind.RAIL, 80, 640),  # k = 8: 8 rails of 8 switches, 16 in the spine
        (Kind.FAT_TREE, 80, 640),  # k = 8: 5 k^2 / 4 switches
        (Kind.PHOTONIC, 2, 256),  # 32 ports in a rail: six rails share a switch of 192
        (Kind.CPO, 80, 640),
    ],
)
def test_128_h200_take_so_many_switches_and_ports(kind: Kind, switches: int, ports: int) -> None:
    found = counts(kind, 128, H200)
    assert (found.switches, found.ports) == (switches, ports)


amounts = st.floats(0, 1e6)
price_files = st.builds(
    lambda usd, w, nic, both, whole, ports: PriceFile.model_validate(
        {
            "transceiver": {"usd": usd, "w": w},
            "optical_switch": {"usd_per_port": usd / 3, "w": w * 7},
            "nic": {"usd": nic, "w": w / 7},
            "fibre": {"usd": nic / 9, "w": 0.0},
            "switch_optics": both,
            "whole_switches": whole,
            "ocs_ports_per_gpu": ports,
        }
    ),
    amounts, amounts, amounts, st.booleans(), st.booleans(), st.sampled_from((1, 2, 4)),
)  # fmt: skip


@given(
    st.sampled_from(list(SYSTEMS)),
    st.integers(1, 600),
    st.sampled_from(list(Kind)),
    st.none() | price_files,
)
def test_the_lines_of_every_bill_add_up_to_the_cent(
    system: str, hosts: int, kind: Kind, changes: PriceFile | None
) -> None:
    prices = SYSTEMS[system] if changes is None else merged(SYSTEMS[system], changes)
    gpus = hosts * prices.gpus_per_host
    document = cost_document(gpus, prices, [kind])
    found = document["bills"][0]
    assert found["usd"] == pytest.approx(sum(line["usd"] for line in found["lines"]), abs=0.005)
    assert found["w"] == pytest.approx(sum(line["w"] for line in found["lines"]), abs=0.0005)
    for line in found["lines"]:
        assert line["count"] > 0
        assert line["usd"] == pytest.approx(line["count"] * line["usd_each"], abs=0.006, rel=1e-12)
        assert line["w"] == pytest.approx(line["count"] * line["w_each"], abs=0.0006, rel=1e-12)
    # Parts are told apart by where they are: nothing is counted in two lines.
    assert len({line["item"] for line in found["lines"]}) == len(found["lines"])
    ends = sum(line["count"] for line in found["lines"] if line["item"].startswith("transceiver"))
    at_switches = kind in (Kind.RAIL, Kind.FAT_TREE) and prices.switch_optics
    assert ends == gpus + (found["ports"] if at_switches else 0)


def test_a_rail_that_fits_no_switch_says_what_it_needs() -> None:
    fits, none = rail_need(96 * 8, H200), rail_need(97 * 8, H200)
    assert (fits.ports, fits.fits, fits.switches) == (192, True, 8)
    assert (none.ports, none.fits) == (194, False)
    assert "does not fit one switch of 192 ports: it needs one of 194" in none.says
    assert "2 switches of 192 with at most 96 hosts each" in none.says
    # Three stages: 96 outer ports a switch, so 3 at the edge, whose 288 inner ports take 2 in the middle.
    assert "3 + 2 switches of 192 in three stages" in none.says
    assert none.says in cost_document(97 * 8, H200)["notes"]


@pytest.mark.parametrize(
    ("gpus", "message"),
    [(129, "128 or 136 would fit"), (0, "8 or 16 would fit"), (-5, "8 or 16"), (1 << 30, "at most")],
)
def test_half_a_host_is_refused_with_what_would_fit(gpus: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cost_document(gpus, H200)


def test_a_price_file_changes_what_it_names_and_adds_what_was_left_out(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("transceiver: {usd: 1000}\nnic: {usd: 1500, w: 25}\nfibre: {usd: 40, w: 0}\n")
    prices = system_prices("h200", file)
    assert (prices.transceiver.usd, prices.transceiver.w) == (1000, 10)
    before, after = bill(Kind.PHOTONIC, 128, H200), bill(Kind.PHOTONIC, 128, prices)
    assert after.usd == before.usd + 128 * 121 + 128 * 1500 + 256 * 40
    assert after.w == before.w + 128 * 25


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("transciever: {usd: 1}", "transciever: no such key; did you mean 'transceiver'"),
        ("transceiver: {price: 1}", "transceiver.price: no such key; known here: usd, w"),
        ("transceiver: {usd: -1}", "transceiver.usd is -1: input should be greater than or equal to 0"),
        ("transceiver: {usd: cheap}", "transceiver.usd is 'cheap': input should be a valid number"),
        ("- 1", "it must hold a YAML mapping"),
    ],
)
def test_a_price_file_that_cannot_be_meant_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        system_prices("h200", file)
    assert message in str(refused.value)


def test_the_sensitivity_moves_each_ratio_by_what_its_input_is_worth() -> None:
    found = {(case.group, case.value.partition(":")[0]): case for case in sensitivity(128, H200)}
    base = found["as priced", ""]
    # By hand: 256 OCS ports at $1,040 and 128 transceivers at $879; the packet side stays.
    dear = found["price of an OCS port", "x 2"]
    assert dear.photonic_usd == 256 * 1040 + 128 * 879
    assert dear.packet_usd == base.packet_usd
    assert dear.power_ratio == base.power_ratio
    # Without transceivers at the switches, 640 ports and 128 transceivers are left.
    bare = found["optics rule", "transceivers at GPUs only"]
    assert bare.packet_usd == 372_990 + 128 * 879
    assert found["link rate", "800 Gb/s, its optics and switches"].photonic_usd == base.photonic_usd
    assert found["radix of an OCS, whole switches", "64 ports"].note.endswith("64 ports, which 2 rails share")


def test_a_system_is_complete_and_says_so() -> None:
    for prices in SYSTEMS.values():
        assert isinstance(prices, Prices)
        assert prices.nic is None
        assert "NICs, fibre" in cost_document(prices.gpus_per_host * 16, prices)["notes"][0]
