"""What a host says of what it did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Activation:
    """A bundle that is active now."""

    previous: str | None
    """The bundle that was active before, if another was."""
    current: str
    verified_files: int
    """Files whose hashes were checked; none where a rollback finds the bundle still open."""
    warmup_requests: int
    flip_ms: float
    """How long a request could have waited for it."""
    took_ms: float


@dataclass(frozen=True)
class Verified:
    """A bundle whose files all have their lengths and hashes, whose rows are those of its weights."""

    id: str
    files: int
    bytes: int
    took_ms: float


@dataclass(frozen=True)
class ErasedUser:
    """What was deleted of a user, and what is left in bundles and not read any more."""

    user_id: str
    erased_at: int
    """Milliseconds since 1970."""
    deleted: dict[str, int]
    """Rows that are gone: `events`, `rankings`, `states`."""
    hidden: dict[str, int]
    """Events by bundle, which are immutable: they are not read any more."""
