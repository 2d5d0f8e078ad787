"""What a service refused or did not do, as exceptions; each holds the problem that the service stated."""

from __future__ import annotations

from limerank.errors import ConflictError, DeadlineError, LimerankError, UnavailableError, UsageError
from limerank.wire.problems import Problem

NO_ANSWER = 0
"""The status of problems that no service stated: it could not be reached, or did not answer in time."""


class ServiceError(LimerankError):
    """The service did not do what it was asked; `problem` says why, `request_id` finds it in the service's log."""

    def __init__(self, problem: Problem, *, request_id: str = "", retry_after: float | None = None) -> None:
        self.problem = problem
        self.request_id = problem.request_id or request_id
        self.retry_after = retry_after
        """Seconds after which the service said to come again."""
        super().__init__(_line(problem, self.request_id))


class UnauthorizedError(ServiceError):
    """The service wants a key and got none, or one that it does not know (401)."""


class ForbiddenError(ServiceError):
    """The key does not have the scope that the operation needs (403)."""


class NotFoundError(ServiceError):
    """There is no such item, bundle or path (404)."""


class InvalidRequestError(ServiceError, UsageError):
    """The request cannot be, or is too large (400, 413, 415, 422, 431); `problem.errors` names the fields."""


class ServiceConflictError(ServiceError, ConflictError):
    """Something else is the case than the caller believed: another bundle is active, for one (409)."""


class TooManyRequestsError(ServiceError, UnavailableError):
    """The service has as many requests waiting as it lets wait (429)."""


class ServiceUnavailableError(ServiceError, UnavailableError):
    """The service cannot be reached, is starting or draining, or has no room on its disk (502, 503, 507)."""


class ServiceDeadlineError(ServiceError, DeadlineError):
    """Time was up: the service said so (408, 504), or nothing came back before the deadline."""


class UnexpectedAnswerError(ServiceError):
    """An answer that this client cannot read: an error inside of the service (500), or no limerank service at all."""


BY_STATUS: dict[int, type[ServiceError]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    408: ServiceDeadlineError,
    409: ServiceConflictError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    431: InvalidRequestError,
    429: TooManyRequestsError,
    502: ServiceUnavailableError,
    503: ServiceUnavailableError,
    504: ServiceDeadlineError,
    507: ServiceUnavailableError,
}


def error_of(problem: Problem, *, request_id: str, retry_after: float | None) -> ServiceError:
    """The exception for a problem that a service stated."""
    kind = BY_STATUS.get(problem.status, UnexpectedAnswerError)
    return kind(problem, request_id=request_id, retry_after=retry_after)


def _line(problem: Problem, request_id: str) -> str:
    status = f" ({problem.status})" if problem.status else ""
    unsaid = [part for part in problem.errors if (part.message or part.code) not in problem.detail]
    fields = "".join(f"; {part.path}: {part.message or part.code}" for part in unsaid[:3])
    more = f"; and {len(unsaid) - 3} more" if len(unsaid) > 3 else ""
    return f"{problem.title}{status}: {problem.detail}{fields}{more} [request {request_id}]"
