"""YAML that remembers its lines, in the plain subset that a file written by people needs.

Only mappings, lists, text, numbers, `true`/`false` and `null`: a host called `no`, `on` or `1:30` stays text
(common YAML readers make a boolean or a number of it), and a key given twice is a fault instead of a silent
overwrite.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

Location = tuple[str | int, ...]
DEPTH_MAX = 32

_ALIAS = "!alias"
_TEXT = "tag:yaml.org,2002:str"
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")  # a longer one stays text: no field takes it
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a file. `line` counts from 1; 0 where no line can be named."""

    line: int
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data, the line of every value and key by its path, and the faults found on the way."""

    data: object
    lines: dict[Location, int]
    faults: tuple[Fault, ...]

    def line_of(self, location: Location) -> int:
        """The line of a path, or of its nearest ancestor that the file has."""
        while location not in self.lines:
            location = location[:-1]
        return self.lines[location]


class YamlError(Exception):
    """Text that is not one YAML document."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class _Loader(yaml.SafeLoader):
    """Composes nodes; every plain scalar is text here, and `_scalar` decides what it means."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.yaml_implicit_resolvers = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """An alias becomes a node of its own: resolved, a short file could describe an enormous one."""
        if self.check_event(yaml.AliasEvent):
            events: Any = self  # the stubs leave this method untyped
            event = events.get_event()
            return yaml.ScalarNode(_ALIAS, event.anchor, event.start_mark, event.end_mark)
        return super().compose_node(parent, index)


def path_text(location: Location) -> str:
    """A path as people write it: `rails[0].slots[1]`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_yaml(text: str) -> Document:
    """Read one document. Raises YamlError when there is none; `Document.faults` has what could be skipped."""
    try:
        root = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark or broken.context_mark
        line = mark.line + 1 if mark else 0
        raise YamlError(Fault(line, "", f"not YAML: {broken.problem or broken.context}")) from None
    except yaml.reader.ReaderError as broken:
        line = text.count("\n", 0, broken.position) + 1
        raise YamlError(
            Fault(line, "", f"not YAML: character U+{broken.character:04X} is not allowed")
        ) from None
    except RecursionError:
        raise YamlError(Fault(0, "", f"nested deeper than the {DEPTH_MAX} levels allowed")) from None
    if root is None:
        raise YamlError(Fault(1, "", "the file is empty; `opus fabric generate` writes one to start from"))
    walk = _Walk()
    data = walk.value(root, ())
    return Document(data, walk.lines, tuple(walk.faults))


class _Walk:
    """One pass over the composed nodes: values, lines and faults together."""

    def __init__(self) -> None:
        self.lines: dict[Location, int] = {}
        self.faults: list[Fault] = []

    def value(self, node: yaml.Node, at: Location) -> object:
        line = node.start_mark.line + 1
        self.lines.setdefault(at, line)
        if len(at) > DEPTH_MAX:
            return self._fault(line, at[:2], f"is nested deeper than the {DEPTH_MAX} levels allowed")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, at)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*at, number)) for number, item in enumerate(node.value)]
        if node.tag == _ALIAS:
            return self._fault(
                line, at, f"is the YAML alias *{node.value}, which is not supported; write the value out"
            )
        if not isinstance(node, yaml.ScalarNode) or node.tag != _TEXT:
            return self._fault(
                line, at, f"has the YAML tag {node.tag!r}, which is not supported; leave it out"
            )
        return node.value if node.style in ("'", '"', "|", ">") else _scalar(node.value)

    def _mapping(self, node: yaml.MappingNode, at: Location) -> dict[str, object]:
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._fault(line, at, "has a list or a mapping as a key; use a name")
                continue
            key = key_node.value
            if key in found:
                first = self.lines[(*at, key)]
                self._fault(line, (*at, key), f"is given twice (first in line {first}); keep one of the two")
                continue
            self.lines[(*at, key)] = line
            found[key] = self.value(value_node, (*at, key))
        return found

    def _fault(self, line: int, at: Location, message: str) -> object:
        self.faults.append(Fault(line, path_text(at), message))
        return None


def _scalar(text: str) -> object:
    """What an unquoted word means."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
