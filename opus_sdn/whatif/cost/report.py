"""What `opus whatif cost` says: bills, ratios, whether rails fit a switch, and the sensitivity of it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from opus_sdn.whatif.cost.bill import Bill, bill
from opus_sdn.whatif.cost.fabrics import Kind, hosts_of, rail_need
from opus_sdn.whatif.cost.prices import Prices
from opus_sdn.whatif.cost.sensitivity import ratio, sensitivity

LEFT_OUT = "servers, cables and cooling are left out"


def cost_document(gpus: int, prices: Prices, fabrics: Sequence[Kind] = ()) -> dict[str, Any]:
    """Everything about `gpus` on `fabrics`, by default the packet rail and the photonic one.

    Ratios are over the photonic rail, which is priced too where it was not asked for. Raises InputError.
    """
    wanted = list(dict.fromkeys(fabrics)) or [Kind.RAIL, Kind.PHOTONIC]
    optical = bill(Kind.PHOTONIC, gpus, prices)
    bills = [optical if kind is Kind.PHOTONIC else bill(kind, gpus, prices) for kind in wanted]
    packet = next((kind for kind in wanted if kind is not Kind.PHOTONIC), Kind.RAIL)
    return {
        "gpus": gpus,
        "hosts": hosts_of(gpus, prices),
        "prices": prices.model_dump(),
        "bills": [_bill_document(found) for found in bills],
        "ratios": {
            str(found.kind): {"cost": ratio(found.usd, optical.usd), "power": ratio(found.w, optical.w)}
            for found in bills
            if found.kind is not Kind.PHOTONIC
        },
        "rail": asdict(rail_need(gpus, prices)),
        "sensitivity": [asdict(case) for case in sensitivity(gpus, prices, packet)],
        "notes": notes(gpus, prices, bills),
    }


def _bill_document(found: Bill) -> dict[str, Any]:
    return {
        "fabric": str(found.kind),
        "switches": found.counts.switches,
        "radix": found.counts.radix,
        "ports": found.counts.ports,
        "rule": found.counts.rule,
        "lines": [
            {
                "item": line.item,
                "count": line.count,
                "usd_each": line.usd_each,
                "usd": line.usd,
                "w_each": line.w_each,
                "w": line.w,
            }
            for line in found.lines
        ],
        "usd": found.usd,
        "w": found.w,
    }


def notes(gpus: int, prices: Prices, bills: Sequence[Bill]) -> list[str]:
    """What has to be known to read the figures."""
    found = []
    absent = [name for name, part in (("NICs", prices.nic), ("fibre", prices.fibre)) if part is None]
    found.append(", ".join([*absent, LEFT_OUT]) + ("; a price file adds what has a price" if absent else ""))
    need = rail_need(gpus, prices)
    if not need.fits:
        found.append(need.says)
    for each in bills:
        if each.kind is not Kind.PHOTONIC and not each.counts.exact_radix:
            found.append(
                f"{each.kind}: {gpus} GPUs are no size that switches of {each.counts.radix} ports fill, "
                "so the rule's rounding shows in the figures"
            )
        if each.kind is Kind.CPO:
            found.append(
                "cpo: the power of co-packaged optics is a vendor's claim, its price an assumption; a price "
                "file changes both (co_packaged)"
            )
    if not prices.switch_optics:
        found.append(
            "transceivers at packet switches are not counted, as in the published set of this system"
        )
    return found
