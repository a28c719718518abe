"""The whole state of an engine as plain values, to see that a refused request leaves no trace."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

from opus_sdn.intent.engine import Engine
from opus_sdn.intent.fabric import Fabric


def snapshot(engine: Engine) -> Any:
    """Everything that the engine's state reaches, except the fabric, which never changes."""
    return _plain(engine.state, set())


def _plain(value: Any, above: set[int]) -> Any:
    if value is None or isinstance(value, str | int | float | Enum):
        return value
    if isinstance(value, Fabric) or id(value) in above:
        return f"<{type(value).__name__}>"
    above = above | {id(value)}
    if isinstance(value, Mapping):
        return [(_plain(k, above), _plain(v, above)) for k, v in value.items()]
    if isinstance(value, list | tuple | deque):
        return [_plain(item, above) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_plain(item, above)) for item in value)
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value)]
    else:
        slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
        names = [*slots, *getattr(value, "__dict__", ())]
    return type(value).__name__, [(name, _plain(getattr(value, name, None), above)) for name in names]
