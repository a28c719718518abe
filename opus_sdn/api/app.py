"""The application: routes, errors and pages around a running controller."""

from __future__ import annotations

from fastapi import Depends, FastAPI

from opus_sdn.api import pages, problems
from opus_sdn.api.context import RequestContext
from opus_sdn.api.routes import arrivals, events, fabric, groups, health, jobs, operators, simulations, waits
from opus_sdn.api.routes.common import refuse_unknown_query, send_changes_to_the_leader
from opus_sdn.api.simulations.keeper import Simulations
from opus_sdn.api.term import Term
from opus_sdn.settings import Settings


def create_app(settings: Settings, term: Term) -> FastAPI:
    """The API of this controller, on its first term."""
    app = routes_only()
    app.state.settings = settings
    app.state.event_streams = set()
    app.state.simulations = Simulations(settings)
    use_term(app, term)
    app.add_middleware(RequestContext, start=term.start)
    return app


def use_term(app: FastAPI, term: Term) -> None:
    """From now on requests are served from this term."""
    app.state.runtime = term.runtime
    app.state.fabric = term.keeper
    app.state.former_jobs = term.former
    app.state.plans = term.plans


def routes_only() -> FastAPI:
    """The routes with nothing behind them, for the API document."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    strict = [Depends(refuse_unknown_query), Depends(send_changes_to_the_leader)]
    # The hot route is the first that a request is compared with.
    for part in (arrivals, fabric, jobs, groups, waits, operators, events):
        app.include_router(part.router, prefix=problems.PREFIX, dependencies=strict)
    # Simulations decide nothing: whichever replica is asked runs them.
    app.include_router(
        simulations.router, prefix=problems.PREFIX, dependencies=[Depends(refuse_unknown_query)]
    )
    app.include_router(health.router, dependencies=strict)
    pages.install(app)
    problems.install(app)
    return app
