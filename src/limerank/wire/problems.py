"""Errors as RFC 9457 has them: application/problem+json."""

from __future__ import annotations

from limerank.wire.body import Said

PROBLEM_JSON = "application/problem+json"


class ProblemPart(Said, omit_defaults=True):
    """One field that is wrong."""

    path: str
    """Where in the body: `item_ids[3]`."""
    code: str
    """What kind of mistake it is: `invalid`, `max_length`, `unknown`."""
    message: str = ""
    limit: int | None = None
    """What would have been allowed, where there is a limit."""


class Problem(Said, omit_defaults=True):
    """What is wrong, and what to do about it."""

    type: str
    """/problems/NAME, which docs/reference/http.md explains."""
    title: str
    status: int
    detail: str
    instance: str = ""
    request_id: str = ""
    errors: list[ProblemPart] = []
