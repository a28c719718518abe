"""What comes from files and over the side door: checked as a whole, every fault named."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import ValidationError

from opus_sdn.drivers.polatis_emulator.spec import Strict

Document = TypeVar("Document", bound=Strict)


class EmulatorFileError(ValueError):
    """Values that cannot be used: a line for each fault, with where it is and what is wrong."""


def check(model: type[Document], values: dict[str, Any], source: str) -> Document:
    """The values as what they are to be. Raises EmulatorFileError with a line for each fault."""
    try:
        # By way of JSON, where a list may stand for a tuple and nothing else is taken for something else.
        return model.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as wrong:
        lines = []
        for fault in wrong.errors(include_url=False):
            where = ".".join(str(part) for part in fault["loc"])
            text = fault["msg"].removeprefix("Value error, ")
            given = f" (given: {fault['input']!r:.80})" if text == fault["msg"] else ""
            lines.append(f"{source}: {where + ': ' if where else ''}{text}{given}")
        raise EmulatorFileError("\n".join(lines)) from None
