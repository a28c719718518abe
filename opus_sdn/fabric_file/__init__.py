"""The fabric as an operator writes it: which NIC port of which GPU sits on which switch position.

`FabricSpec` is the one model of it, for the YAML file and for the REST API; `FabricSpec.build` gives the
frozen fabric of the core. Every fault is reported at once, each with what is wrong and what would be right,
and in a file with its line.
"""

from opus_sdn.fabric_file.generate import generate_fabric
from opus_sdn.fabric_file.lines import Fault
from opus_sdn.fabric_file.read import FabricFileError, load_fabric, parse_fabric
from opus_sdn.fabric_file.spec import KNOWN_DRIVERS, FabricSpec, RailSpec, SwitchSpec
from opus_sdn.fabric_file.wiring import Layout

__all__ = [
    "KNOWN_DRIVERS",
    "FabricFileError",
    "FabricSpec",
    "Fault",
    "Layout",
    "RailSpec",
    "SwitchSpec",
    "generate_fabric",
    "load_fabric",
    "parse_fabric",
]
