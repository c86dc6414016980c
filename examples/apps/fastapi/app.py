"""An application with limits per IP address, per account and per API key."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel
from sluicegate import AsyncClient
from sluicegate.asgi import RateLimitMiddleware, Request

# An application reads these from its database.
TIERS = {"key-free": "free", "key-pro": "pro", "key-enterprise": "enterprise"}

# Proxies in front that append to X-Forwarded-For.
TRUSTED_PROXIES = int(os.environ.get("TRUSTED_PROXIES", "0"))

client = AsyncClient(
    os.environ.get("SLUICEGATE", "127.0.0.1:8081"),
    timeout=float(os.environ.get("SLUICEGATE_TIMEOUT", "0.1")),
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Closes the client with the application."""
    async with client:
        yield


async def descriptors(request: Request) -> list[dict[str, str]]:
    """What a request is limited by."""
    key = request.header("x-api-key")
    if key in TIERS:
        return [{"tier": TIERS[key], "api_key": key}]
    # Also requests with an unknown key: guessing keys has the limit of the address.
    by = [{"remote_address": request.client_ip(trusted_proxies=TRUSTED_PROXIES)}]
    if request.path == "/login":
        by.append({"email": (await request.json_field("email")).strip().lower()})
    return by


app = FastAPI(lifespan=lifespan)
app.add_middleware(RateLimitMiddleware, client=client, domain="fastapi_example", descriptors=descriptors)


class Login(BaseModel):
    """What a user sends to log in."""

    email: str
    password: str


@app.get("/")
async def index() -> dict[str, str]:
    """Open to everybody."""
    return {"hello": "world"}


@app.post("/login")
async def login(attempt: Login) -> dict[str, str]:
    """Rejects all passwords: it is an example."""
    raise HTTPException(401, "wrong e-mail address or password")


@app.get("/api/report")
async def report(x_api_key: Annotated[str | None, Header()] = None) -> dict[str, str]:
    """Open to those who have an API key."""
    if x_api_key not in TIERS:
        raise HTTPException(401, "an API key is needed in x-api-key")
    return {"tier": TIERS[x_api_key]}
