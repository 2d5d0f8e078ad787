"""Every operation of the service, once, as both clients offer it.

A `Method` holds a function that says what to ask. Called on a `Client` it answers, called on an `AsyncClient` it is
awaited; the arguments are those of the function, for people, editors and type checkers alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, overload

from limerank.client import about, bundles, changes, rankings
from limerank.client.call import Call

P = ParamSpec("P")
T = TypeVar("T")


class Blocking(ABC):
    """A client whose methods return answers."""

    @abstractmethod
    def perform(self, call: Call[T]) -> T:
        """Send a call, wait, and return its answer."""


class Awaiting(ABC):
    """A client whose methods return answers when they are awaited."""

    @abstractmethod
    async def perform(self, call: Call[T]) -> T:
        """Send a call, wait, and return its answer."""


class Method(Generic[P, T]):
    """An operation that belongs to a client."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self.build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Call[T]]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Blocking | Awaiting | None, owner: type) -> Callable[P, Any]:
        if client is None:
            return self.build

        @wraps(self.build)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.perform(self.build(*args, **kwargs))

        return method


class Operations:
    """What a service can be asked."""

    rank = Method(rankings.rank)
    rank_batch = Method(rankings.rank_batch)
    recommend = Method(rankings.recommend)
    explain = Method(rankings.explain)

    add_events = Method(changes.add_events)
    add_event = Method(changes.add_event)
    find_users = Method(changes.find_users)
    show_user = Method(changes.show_user)
    erase_user = Method(changes.erase_user)
    find_items = Method(changes.find_items)
    upsert_items = Method(changes.upsert_items)
    delete_items = Method(changes.delete_items)
    show_item = Method(changes.show_item)

    list_bundles = Method(bundles.list_bundles)
    show_bundle = Method(bundles.show_bundle)
    publish_bundle = Method(bundles.publish_bundle)
    verify_bundle = Method(bundles.verify_bundle)
    activate_bundle = Method(bundles.activate_bundle)
    roll_back = Method(bundles.roll_back)
    diff_bundles = Method(bundles.diff_bundles)
    compare_bundles = Method(bundles.compare_bundles)
    show_report = Method(bundles.show_report)
    collect_bundles = Method(bundles.collect_bundles)
    show_routing = Method(bundles.show_routing)
    set_routing = Method(bundles.set_routing)

    list_links = Method(about.list_links)
    status = Method(about.status)
    info = Method(about.info)
    live = Method(about.live)
    ready = Method(about.ready)
    health = Method(about.health)
    metrics = Method(about.metrics)
    openapi = Method(about.openapi)
