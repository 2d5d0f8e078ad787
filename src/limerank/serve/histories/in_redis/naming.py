"""What the keys of a store begin with: the prefix of the address, or the id of the store, which a copy of it keeps."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from limerank import files
from limerank.errors import BundleError, UnavailableError, UsageError
from limerank.files import AnyPath
from limerank.serve.histories.in_redis.address import RedisAddress

FILE = "store.json"
ID = re.compile(r"[0-9a-f]{16}")


def prefix_of(address: RedisAddress, store: AnyPath | None) -> str:
    """The beginning of all keys."""
    if address.prefix is not None:
        if not address.prefix or set(address.prefix) & set("{}"):  # which would be taken for a hash tag
            raise UsageError(f"{address}: prefix={address.prefix:.40} must be a text without braces")
        return address.prefix
    if store is None:
        raise UsageError(f"{address}: whose histories? name a store, or a prefix: {address}?prefix=NAME")
    return f"limerank:{store_id(Path(store))}"


def store_id(store: Path) -> str:
    """The id of a store; one that has none is given one."""
    from limerank.serve.bundles.store import BundleStore  # which loads torch

    path = store / FILE
    try:
        if not path.exists():
            with BundleStore(store).changing():
                if not path.exists():  # nobody was quicker
                    files.write_json(path, {"id": secrets.token_hex(8)})
    except OSError as refused:
        raise UnavailableError(
            f"{path}: cannot be written ({refused.strerror}); name the histories in the address: ?prefix=NAME"
        ) from None
    said = files.read_json(path, BundleError, "delete it, or name the histories in the address: ?prefix=NAME")
    found = said.get("id") if isinstance(said, dict) else None
    if not isinstance(found, str) or not ID.fullmatch(found):
        raise BundleError(f"{path}: names no id; restore it, or name the histories in the address: ?prefix=NAME")
    return found
