"""The API document. It is made from the routes alone, without a controller behind them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from opus_sdn import __version__
from opus_sdn.api.bodies import REF
from opus_sdn.api.operator_schemas import CircuitRequest, DrainRequest, UndrainRequest
from opus_sdn.api.plan_schemas import PlanRequest
from opus_sdn.api.schemas import (
    AbortRequest,
    ArrivalsRequest,
    DeathsRequest,
    FailureRequest,
    GroupRequest,
    GroupsRequest,
    JobRequest,
    LinksRequest,
)
from opus_sdn.api.simulations.request import SimulationRequest
from opus_sdn.fabric_file import FabricSpec

DESCRIPTION = """\
Control plane of optical circuit switches in GPU training fabrics. Ranks declare which connectivity they need
next, the controller points the switches so, never tears down a circuit that carries traffic, and says when
it is so.

Times are RFC 3339 in UTC, durations carry their unit in the name, operation numbers count from 0 per stream.
Every error is `application/problem+json` with a stable `type`. Lists take `limit` and `cursor`.
"""
TAGS = [
    {"name": "fabric", "description": "Hosts, ports, rails and switches, as declared and as observed"},
    {"name": "jobs", "description": "Training runs and their incarnations"},
    {"name": "groups", "description": "Process groups and the connections that they need"},
    {"name": "ranks", "description": "What ranks say and what they are told: the route in the training step"},
    {"name": "waits", "description": "Who holds what, and who waits for what and why"},
    {"name": "operators", "description": "What operators tell, who waits for ports, and force"},
    {"name": "events", "description": "The history"},
    {"name": "simulations", "description": "Replays of training steps on fabrics that need not exist"},
    {"name": "health", "description": "Probes"},
]
BODIES = (
    AbortRequest,
    ArrivalsRequest,
    CircuitRequest,
    DeathsRequest,
    LinksRequest,
    DrainRequest,
    FabricSpec,
    FailureRequest,
    GroupRequest,
    GroupsRequest,
    JobRequest,
    PlanRequest,
    SimulationRequest,
    UndrainRequest,
)
PROBLEM = {
    "title": "Problem",
    "description": "RFC 9457 problem details. Further members depend on the type.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance", "request_id"],
    "properties": {
        "type": {"type": "string", "format": "uri", "description": "Stable name of the problem"},
        "title": {"type": "string"},
        "status": {"type": "integer", "description": "The HTTP status"},
        "detail": {"type": "string", "description": "The field, its value and what would be right"},
        "instance": {"type": "string", "description": "Path of the request"},
        "request_id": {"type": "string", "description": "As in the X-Request-Id header and the log"},
    },
    "additionalProperties": True,
}


def document() -> dict[str, Any]:
    """The API document of this version."""
    from opus_sdn.api.app import routes_only

    return document_of(routes_only())


def document_of(app: FastAPI) -> dict[str, Any]:
    """The API document of an app's routes; made once per app."""
    if app.openapi_schema is None:
        made = get_openapi(
            title="Opus SDN",
            version=__version__,
            summary="Control plane for optical circuit switches in GPU training fabrics",
            description=DESCRIPTION,
            routes=app.routes,
            tags=TAGS,
            license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        )
        _, bodies = models_json_schema([(model, "validation") for model in BODIES], ref_template=REF)
        schemas = made["components"]["schemas"]
        schemas.update(bodies["$defs"])
        schemas["Problem"] = PROBLEM
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        app.openapi_schema = made
    return app.openapi_schema
