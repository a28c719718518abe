"""The application: routes, errors and pages around a running controller."""

from __future__ import annotations

from fastapi import Depends, FastAPI

from opus_sdn.api import pages, problems
from opus_sdn.api.context import RequestContext
from opus_sdn.api.fabric_keeper import FabricKeeper
from opus_sdn.api.former import FormerJobs
from opus_sdn.api.routes import arrivals, events, fabric, groups, health, jobs, waits
from opus_sdn.api.routes.common import refuse_unknown_query
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.settings import Settings


def create_app(
    runtime: Runtime,
    settings: Settings,
    keeper: FabricKeeper,
    former_jobs: FormerJobs | None = None,
) -> FastAPI:
    """The API of this controller. `former_jobs`: those that an earlier start left in the store."""
    app = routes_only()
    app.state.runtime = runtime
    app.state.settings = settings
    app.state.fabric = keeper
    app.state.former_jobs = former_jobs or FormerJobs()
    app.state.event_streams = set()
    app.add_middleware(RequestContext, start=runtime.engine.state.start)
    return app


def routes_only() -> FastAPI:
    """The routes with nothing behind them, for the API document."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    strict = [Depends(refuse_unknown_query)]
    # The hot route is the first that a request is compared with.
    for part in (arrivals, fabric, jobs, groups, waits, events):
        app.include_router(part.router, prefix=problems.PREFIX, dependencies=strict)
    app.include_router(health.router, dependencies=strict)
    pages.install(app)
    problems.install(app)
    return app
