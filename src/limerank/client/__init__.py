"""A typed client of the service: `Client` and `AsyncClient`; it needs neither torch nor anything else that ranks."""

from __future__ import annotations

from limerank.errors import require_extra

for _engine in ("httpx", "msgspec"):
    require_extra(_engine, "client")

from limerank.client.async_client import AsyncClient  # noqa: E402 (what it needs is looked for first)
from limerank.client.blocking import Client  # noqa: E402
from limerank.client.errors import (  # noqa: E402
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    ServiceConflictError,
    ServiceDeadlineError,
    ServiceError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
    UnexpectedAnswerError,
)

__all__ = [
    "AsyncClient",
    "Client",
    "ForbiddenError",
    "InvalidRequestError",
    "NotFoundError",
    "ServiceConflictError",
    "ServiceDeadlineError",
    "ServiceError",
    "ServiceUnavailableError",
    "TooManyRequestsError",
    "UnauthorizedError",
    "UnexpectedAnswerError",
]
