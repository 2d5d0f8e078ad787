"""Finished user states that several servers have in common, each under a name made of all that it depends on.

A name is a digest of the version of limerank, the bundle, the user's row, the events and the context. So whatever else
happens to a store of states, none is ever taken for another: one that no longer holds is not asked for. Shared are
finished states, some tens of kilobytes for LIME; what grows stays with who grew it.
"""

from __future__ import annotations

import zlib
from typing import Protocol, runtime_checkable

from safetensors import SafetensorError
from safetensors.torch import load, save

from limerank import __version__, files
from limerank.models import UserState
from limerank.serve.requests import Asked
from limerank.serve.states.source import UserSource

FORMAT = "limerank-user-state-1"
CHECKSUM = 4
LARGEST = 2**20
"""Bytes of a state that is worth sending: a skyline's is its whole history, which is read as quickly."""
HEAD, MEMORY = "head_part", "memory"


class SharedStates(Protocol):
    """Where servers leave finished states for each other; all methods may be called from many threads."""

    def find(self, user_id: str, name: bytes) -> UserState | None:
        """The state of this name, if somebody left it; None also while nobody can be asked."""

    def keep(self, user_id: str, token: bytes, name: bytes, state: UserState) -> None:
        """Leave a state for others, sooner or later or never; not if the user was changed since `token`."""


@runtime_checkable
class SharesStates(Protocol):
    """Histories that have a place for states, too."""

    @property
    def states(self) -> SharedStates | None:
        """That place, if it is to be used."""


def shared_states_of(histories: object) -> SharedStates | None:
    """The place for states that histories bring along."""
    return histories.states if isinstance(histories, SharesStates) else None


def name_of(source: UserSource, asked: Asked) -> bytes | None:
    """What names the finished state of a request on every server; None if another server could mean something else.

    That is so of histories with items that are not in the bundle, whose rows are each server's own, and of states that
    are approximate. Not worth a name: a short history is read as quickly as a state would be fetched, a skyline's state
    is its history, and one that reads the time of the request is never asked for again.
    """
    ranker = source.ranker
    if source.version != source.reader.bundle.manifest.id or not source.is_long(asked):
        return None
    if not ranker.factorized or source.reads_now:
        return None
    numbers = (asked.user_row, asked.stored.start, asked.stored.stop)
    arrays = [asked.items, asked.events, asked.context]
    if ranker.needs_times and asked.times is not None:
        arrays.append(asked.times)
    content = [one.tobytes() for one in arrays]
    return bytes.fromhex(files.digest_of(FORMAT, __version__, source.version, repr(numbers), *content))


def packed(state: UserState) -> bytes | None:
    """A state as bytes with a checksum; None if it is larger than is worth sending, or of more than one piece."""
    if state.offsets is not None or state.history is not None:
        return None
    tensors = {HEAD: state.head_part, **{f"{MEMORY}{number}": one for number, one in enumerate(state.memory)}}
    if sum(one.nbytes for one in tensors.values()) > LARGEST:
        return None
    data = save({name: one.contiguous() for name, one in tensors.items()})
    return zlib.crc32(data).to_bytes(CHECKSUM, "big") + data


def unpacked(data: bytes) -> UserState | None:
    """The state of some bytes; None if they are damaged."""
    if zlib.crc32(data[CHECKSUM:]) != int.from_bytes(data[:CHECKSUM], "big"):
        return None
    try:
        tensors = load(data[CHECKSUM:])
        memory = tuple(tensors[f"{MEMORY}{number}"] for number in range(len(tensors) - 1))
        return UserState(memory, tensors[HEAD])
    except (SafetensorError, KeyError):
        return None
