"""Both clients as one: a test that is true of one is true of the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from limerank.client import AsyncClient, Client

Ask = Callable[..., Any]
"""`ask(url, method, *args, client={...}, **kwargs)`: a method of a client that is made for it, and closed behind it."""


def blocking(url: str, method: str, *args: Any, client: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    with Client(url, **(client or {})) as service:
        return getattr(service, method)(*args, **kwargs)


def awaiting(url: str, method: str, *args: Any, client: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    async def ask() -> Any:
        async with AsyncClient(url, **(client or {})) as service:
            return await getattr(service, method)(*args, **kwargs)

    return asyncio.run(ask())


with_both = pytest.mark.parametrize("ask", [blocking, awaiting], ids=["Client", "AsyncClient"])
