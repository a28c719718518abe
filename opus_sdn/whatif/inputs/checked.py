"""YAML files for people: read within limits, checked strictly, and refused with what would fit."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.text import read_yaml

# How a union of a name and a mapping calls its two forms in pydantic's errors: no key of any file.
NAME, FIELDS = "<name>", "<fields>"


class Part(BaseModel):
    """A mapping of such a file: names it does not know and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


M = TypeVar("M", bound=BaseModel)


def read_checked(path: Path, model: type[M]) -> M:
    """The YAML file as `model`. Raises InputError with the field, what stands there, and what may."""
    return checked(read_yaml(path), model, path)


def checked(found: dict[Any, Any], model: type[M], file: Path | str) -> M:
    """`found` as `model`. Raises InputError for the first thing that does not fit."""
    try:
        return model.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _refusal(first, model, file) from None


def _refusal(first: Any, model: type[BaseModel], file: Path | str) -> InputError:
    place = tuple(part for part in first["loc"] if part not in (NAME, FIELDS))
    field = ".".join(str(part) for part in place) or "the document"
    if first["type"] == "extra_forbidden":
        known = sorted(_names_at(model, place[:-1]))
        near = [repr(name) for name in get_close_matches(str(place[-1]), known, n=2)]
        did = f"did you mean {' or '.join(near)}? " if near else ""
        return InputError(f"no such key; {did}known here: {', '.join(known)}", file=file, field=field)
    if first["type"] == "missing":
        return InputError("the key is missing", file=file, field=field)
    why = first["msg"].removeprefix("Value error, ")
    return InputError(why[:1].lower() + why[1:], file=file, field=field, value=first["input"])


def _names_at(model: type[BaseModel], place: tuple[Any, ...]) -> list[str]:
    """The keys of the mapping at `place` below `model`."""
    for name in place:
        field = model.model_fields.get(str(name))
        if field is None:
            break
        inner = [kind for kind in _classes(field.annotation) if issubclass(kind, BaseModel)]
        if not inner:
            break
        model = inner[0]
    return list(model.model_fields)


def _classes(annotation: Any) -> list[type]:
    """The classes that an annotation is made of: itself, or the parts of a union or an Annotated."""
    if isinstance(annotation, type):
        return [annotation]
    return [kind for part in getattr(annotation, "__args__", ()) for kind in _classes(part)]
