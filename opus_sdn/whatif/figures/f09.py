"""Figure 9: how a link recovers when its circuit is moved, and whether the transport lives through it.

Light is back first, then the NIC reports its carrier, then traffic flows. A transport that keeps sending
into the dark sends again after every time-out and gives up after so many tries: traffic comes back at a
multiple of the time-out, or never. A transport that is granted its circuits when they are up sends at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from opus_sdn.whatif.figures.model import Compared, Figure, Panel, Series
from opus_sdn.whatif.inputs.checked import Part, read_checked

ACK_UNIT_MS = 4.096e-3  # InfiniBand: a local ACK time-out of exponent e is 4.096 us x 2^e
EXPONENTS = tuple(range(12, 24))
DOWN, LIGHT, CARRIER, TRAFFIC = 0.0, 1.0, 2.0, 3.0
Ms = Annotated[float, Field(ge=0, le=1e7)]


class Parameters(Part):
    """What recovery is made of. The defaults are the published testbed's, but for the time-out.

    `light_ms`: from the command to the switch until there is light again, as published; `optics_ms`: the part
    of it that the optics take by their data sheet. `link_up_ms`: from light to carrier without
    auto-negotiation, `negotiation_ms`: what that adds. `fast_link_up_ms`: firmware that keeps its equaliser
    settings. `ack_timeout_exponent` is a common default of collective libraries.
    """

    control_ms: Ms = 1.0
    optics_ms: Ms = 25.0
    light_ms: Ms = 200.0
    link_up_ms: Ms = 2800.0
    negotiation_ms: Ms = 3000.0
    fast_link_up_ms: Ms = 0.0
    ack_timeout_exponent: Annotated[int, Field(ge=1, le=31)] = 20
    retry_count: Annotated[int, Field(ge=0, le=7)] = 7


@dataclass(frozen=True, slots=True)
class Recovery:
    """Times in ms from the command on. `resumed_ms` None: the transport has given up."""

    name: str
    light_ms: float
    carrier_ms: float
    resumed_ms: float | None
    granted_ms: float


def ack_timeout_ms(exponent: int) -> float:
    """The shortest time after which a message without an answer is sent again."""
    return ACK_UNIT_MS * float(1 << exponent)


def budget_ms(exponent: int, retries: int) -> float:
    """How long the transport tries: the first sending and all repetitions, a time-out after each."""
    return ack_timeout_ms(exponent) * (retries + 1)


def resumed_ms(carrier_ms: float, exponent: int, retries: int) -> float | None:
    """When traffic flows again, if it was first sent the moment the link went down; None: it has given up."""
    timeout = ack_timeout_ms(exponent)
    tries = math.ceil(carrier_ms / timeout)
    return tries * timeout if tries <= retries else None


def recoveries(given: Parameters) -> list[Recovery]:
    """The published two, and what firmware with fast link-up would make of them."""
    cases = (
        ("link-up", given.light_ms, given.link_up_ms),
        ("link-up with auto-negotiation", given.light_ms, given.link_up_ms + given.negotiation_ms),
        ("fast link-up", given.optics_ms, given.fast_link_up_ms),
    )
    found = []
    for name, light, link in cases:
        lit = given.control_ms + light
        carrier = lit + link
        resumed = resumed_ms(carrier, given.ack_timeout_exponent, given.retry_count)
        found.append(Recovery(name, lit, carrier, resumed, carrier))
    return found


def run(*, parameters: Path | None = None, **_: object) -> Figure:
    """The timeline, and for which time-outs the transport lives. Raises InputError for a bad file."""
    given = Parameters() if parameters is None else read_checked(parameters, Parameters)
    found = recoveries(given)
    budget = budget_ms(given.ack_timeout_exponent, given.retry_count)
    return Figure(
        "9",
        "recovery of a link whose circuit is moved",
        (_timeline(found, budget), _by_timeout(found, given)),
        tuple(_compared(found, given)),
        _notes(given, budget),
    )


def _notes(given: Parameters, budget: float) -> tuple[str, ...]:
    tries = f"({given.retry_count} repetitions + 1) x 4.096 us x 2^{given.ack_timeout_exponent}"
    known = (
        "published times are inputs of this figure, from the parameter file; computed are when traffic flows"
    )
    gated = (
        "ranks that are granted their circuits once both NICs report a carrier (`carrier: required`) never"
    )
    return (
        f"{known} again, and whether the transport lives",
        f"retry budget: {tries} = {budget / 1e3:.3g} s; the NIC may take up to four times as long",
        f"{gated} send into the dark: they need no retry budget and lose no time to it",
    )


def _timeline(found: list[Recovery], budget: float) -> Panel:
    series = []
    for each in found:
        x, y = [0.0, each.light_ms, each.carrier_ms], [DOWN, LIGHT, CARRIER]
        if each.resumed_ms is not None:
            x, y = [*x, each.resumed_ms], [*y, TRAFFIC]
        series.append(Series(each.name, tuple(value / 1e3 for value in x), tuple(y)))
    series.append(Series("end of the retry budget", (budget / 1e3, budget / 1e3), (DOWN, TRAFFIC)))
    return Panel(
        "What is back, and when",
        "time since the command (s)",
        "1 light, 2 carrier, 3 traffic",
        tuple(series),
        kind="cdf",
    )


def _by_timeout(found: list[Recovery], given: Parameters) -> Panel:
    x = tuple(float(exponent) for exponent in EXPONENTS)
    series = [
        Series(
            each.name,
            x,
            tuple(_seconds(resumed_ms(each.carrier_ms, e, given.retry_count)) for e in EXPONENTS),
        )
        for each in found
    ]
    budgets = tuple(budget_ms(e, given.retry_count) / 1e3 for e in EXPONENTS)
    return Panel(
        "When traffic is back, by the transport's time-out",
        "exponent of the ACK time-out (4.096 us x 2^e)",
        "time since the command (s)",
        (*series, Series("retry budget", x, budgets)),
        log_y=True,
    )


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _compared(found: list[Recovery], given: Parameters) -> list[Compared]:
    up, negotiated, _ = found
    note = "an input"
    return [
        Compared("light after", 0.2, up.light_ms / 1e3, "s", None, note),
        Compared("optics alone, at most", 0.025, given.optics_ms / 1e3, "s", None, note),
        Compared("carrier after", 3.0, up.carrier_ms / 1e3, "s", None, note),
        Compared("carrier after, with auto-negotiation", 6.0, negotiated.carrier_ms / 1e3, "s", None, note),
        Compared("repetitions (RETRY_CNT)", 7, given.retry_count, "", None, note),
        Compared("traffic after", None, _seconds(up.resumed_ms), "s", None, "sent into the dark"),
        Compared("traffic after", None, up.granted_ms / 1e3, "s", None, "granted when the carrier is up"),
    ]
