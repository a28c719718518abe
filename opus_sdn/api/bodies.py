"""Request bodies in the API document. The framework does not read them, so it has to be told."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

REF = "#/components/schemas/{model}"


def described(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is `model`."""
    content = {"schema": {"$ref": REF.format(model=model.__name__)}, "example": example}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}
