"""Reading a fabric file: every fault with its line, what is wrong there and what would be right."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from opus_sdn.fabric_file.lines import Document, Fault, Location, YamlError, path_text, read_yaml
from opus_sdn.fabric_file.spec import KNOWN_DRIVERS, FabricSpec, RailSpec, SwitchSpec
from opus_sdn.intent.fabric import Fabric

FILE_BYTES_MAX = 32 * 1024 * 1024
FAULTS_SHOWN_MAX = 50

_ENTRIES: dict[object, type[BaseModel]] = {"switches": SwitchSpec, "rails": RailSpec}


class FabricFileError(Exception):
    """A fabric file that cannot be used: one line per fault, as `file:line: path: what is wrong; remedy`."""

    def __init__(self, source: str, faults: Iterable[Fault]) -> None:
        self.source = source
        self.faults = tuple(sorted(faults, key=lambda fault: fault.line))
        shown = [
            f"{source}:{f.line}: {f}" if f.line else f"{source}: {f}" for f in self.faults[:FAULTS_SHOWN_MAX]
        ]
        if len(self.faults) > FAULTS_SHOWN_MAX:
            shown.append(f"{source}: and {len(self.faults) - FAULTS_SHOWN_MAX} more faults")
        super().__init__("\n".join(shown))


def load_fabric(path: Path, drivers: Collection[str] = KNOWN_DRIVERS) -> Fabric:
    """Read and check a fabric file. Raises FabricFileError, also when the file cannot be read."""
    source = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as failed:
        fault = Fault(
            0, "", f"cannot be read: {failed.strerror}; `opus fabric generate` writes a fabric file"
        )
        raise FabricFileError(source, [fault]) from None
    if len(raw) > FILE_BYTES_MAX:
        fault = Fault(0, "", f"is larger than {FILE_BYTES_MAX} bytes; use ranges of hosts, and first_port")
        raise FabricFileError(source, [fault])
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as failed:
        line = raw.count(b"\n", 0, failed.start) + 1
        raise FabricFileError(source, [Fault(line, "", "is not UTF-8 text; save it as UTF-8")]) from None
    return parse_fabric(text, source, drivers).build()


def parse_fabric(text: str, source_name: str, drivers: Collection[str] = KNOWN_DRIVERS) -> FabricSpec:
    """Check the text of a fabric file; `source_name` is what messages call it. Raises FabricFileError."""
    try:
        document = read_yaml(text)
    except YamlError as broken:
        raise FabricFileError(source_name, [broken.fault]) from None
    faults = list(document.faults)
    try:
        # By way of JSON, so that a file and a request body mean the same to the last strict type.
        spec = FabricSpec.model_validate_json(
            json.dumps(document.data), context={"drivers": frozenset(drivers)}
        )
    except ValidationError as refused:
        unread = {fault.where for fault in faults}
        refusals = [_fault(error, document) for error in refused.errors(include_url=False)]
        faults += [fault for fault in refusals if fault.where not in unread]
        raise FabricFileError(source_name, faults) from None
    if faults:
        raise FabricFileError(source_name, faults)
    return spec


def _fault(error: Any, document: Document) -> Fault:
    """A refusal of the model, at the line of the value that it is about."""
    location = tuple(error["loc"])
    line, where = document.line_of(location), path_text(location)
    if error["type"] == "fabric":
        return Fault(line, where, error["msg"])
    model, field = _field_at(location)
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), model.model_fields, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"known here: {', '.join(model.model_fields)}"
        return Fault(line, where, f"is an unknown key; {remedy}")
    if field is None:
        return Fault(line, where, f"is {_shown(error['input'])}; write a mapping with {_required(model)}")
    means = model.model_fields[field].description
    if error["type"] == "missing":
        return Fault(line, where, f"is missing; add {field}: the {means}")
    return Fault(line, where, f"is {_shown(error['input'])}; {field} is the {means}")


def _field_at(location: Location) -> tuple[type[BaseModel], str | None]:
    """The model that a path leads into, and its field; no field when the path is the model itself."""
    entry = _ENTRIES.get(location[0]) if len(location) > 1 else None
    model, rest = (entry, location[2:]) if entry else (FabricSpec, location)
    return model, str(rest[0]) if rest else None


def _required(model: type[BaseModel]) -> str:
    return ", ".join(name for name, field in model.model_fields.items() if field.is_required())


def _shown(value: object) -> str:
    """A value as YAML writes it, cut short."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
