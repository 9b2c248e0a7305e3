"""The least that the framework itself costs: FastAPI with two routes shaped like ours, the same uvicorn and bodies,
nothing behind.

`python -m bench._bare_api PORT PAGE.json WORKSPACE.json`
"""

import json
import sys
from pathlib import Path
from typing import Annotated
from uuid import UUID

import uvicorn
from fastapi import FastAPI, Query
from starlette.responses import JSONResponse

from codehub.api.server import LimitedHttpProtocol


def bare(page: object, workspace: object) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.get("/api/v1/workspaces", response_model=None)
    async def list_workspaces(limit: Annotated[int, Query(ge=1, le=200)] = 50) -> JSONResponse:
        assert limit
        return JSONResponse(page)

    @app.get("/api/v1/workspaces/{workspace_id}", response_model=None)
    async def show_workspace(workspace_id: UUID) -> JSONResponse:
        assert workspace_id
        return JSONResponse(workspace)

    return app


if __name__ == "__main__":
    port, page_file, workspace_file = sys.argv[1:]
    app = bare(json.loads(Path(page_file).read_text()), json.loads(Path(workspace_file).read_text()))
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(port),
        http=LimitedHttpProtocol,
        loop="asyncio",
        access_log=False,
        log_level="warning",
        server_header=False,
    )
