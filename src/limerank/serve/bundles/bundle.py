"""A bundle: one immutable, verified directory with all that serving needs.

manifest.json          what it is, what made it, every file with its length and hash
model.safetensors      the ranker's weights
rows.safetensors       the item rows, stamped with the fingerprint of the weights that made them
encoders.json          values to indices
items.safetensors      encoded item features (the user stage embeds history items)
users.safetensors      encoded user features
histories.safetensors  the last events of each user up to the watermark
seen.safetensors       the distinct items of all events of each user, however long ago
item_ids.safetensors, user_ids.safetensors   ids by row and rows by id (`limerank.serve.bundles.ids`)
report.html            the report of the run it was exported from, if that had one; nothing reads it but people
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from limerank import files
from limerank.batch import Features, Jagged
from limerank.config import finished_model
from limerank.data.store.encoders import Encoders
from limerank.errors import ArgumentError, BundleError, DataError, LimerankError
from limerank.models import Ranker, build_ranker
from limerank.ops.candidate import ROW_TYPES, RowStore
from limerank.serve.bundles.ids import IdMap
from limerank.typed import validate

FORMAT = "limerank-bundle-4"  # 1 had no times of events, 2 lost ids that were appended
NAMES_BEFORE = {"limerank-bundle-3": {"head_part": "share", "select_from": "pool"}}
"""Older formats that open, with the names they have for tensors of rows and for options."""
_NEWER_LIME = {"link_scale", "link_start", "projection_norm", "value_norm"}
NEWER_OF_ALL = ("tower_shortcut", "id_start")
NEWER_OPTIONS = {
    "lime-mha": _NEWER_LIME,
    **dict.fromkeys(("lime-xor", "lime-hstu", "isab"), _NEWER_LIME | {"gate_start"}),
    "pma": {"link_start"},
    "hstu": {"sharpness", "query_width", "scale", "relative_bias", "output_norm", "gate_start"},
    "sasrec": {"sharpness", "final_norm"},
    "ttsn": {"interaction"},
}
"""Options that bundles of this format did not always have, of all rankers and of single ones: left out of fingerprints,
because the weights tell them, or the shape of rows."""
REFUSED = ("limerank-bundle-1", "limerank-bundle-2")
"""Formats of version 0.1.0: some of their bundles lost users and items after an append, and nothing tells which."""
MANIFEST, WEIGHTS, ROWS, ENCODERS = "manifest.json", "model.safetensors", "rows.safetensors", "encoders.json"
ITEMS, USERS = "items.safetensors", "users.safetensors"
HISTORIES, SEEN = "histories.safetensors", "seen.safetensors"
ITEM_IDS, USER_IDS = "item_ids.safetensors", "user_ids.safetensors"
CONTENTS = {WEIGHTS, ROWS, ENCODERS, ITEMS, USERS, HISTORIES, SEEN, ITEM_IDS, USER_IDS}
REPORT = "report.html"
FIX = "export the run again, or roll back with `limerank bundle rollback`"


class BundleManifest(BaseModel):
    """What a bundle is, what made it, and its files."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str
    id: str
    created_at: str
    limerank: str
    model: dict[str, Any]
    tasks: list[str]
    items: int
    users: int
    history_items: int = 0
    row_type: str
    row_bytes: int
    row_fingerprint: str
    data_fingerprint: str
    watermark: int | None
    max_history: int
    metrics: dict[str, Any]
    display: str | None
    """The column of the log that items are called by."""
    files: list[files.FileRecord]

    @property
    def lists_a_bundle(self) -> bool:
        """Whether `files` are those of a bundle, each once; a report may be among them."""
        named = sorted(record.path for record in self.files)
        return named in (sorted(CONTENTS), sorted([*CONTENTS, REPORT]))

    @property
    def has_report(self) -> bool:
        """Whether it brought the report of its run along."""
        return any(record.path == REPORT for record in self.files)

    def age_seconds(self, now: datetime | None = None) -> float:
        """How long ago the bundle was made.

        That is the age of every row: a row depends on weights and features only, so one that was copied from an
        earlier bundle is the one that would have been computed.
        """
        return ((now or datetime.now(UTC)) - datetime.fromisoformat(self.created_at)).total_seconds()

    def watermark_age_seconds(self, now: datetime | None = None) -> float | None:
        """How long ago the last event happened that the bundle knows of; None where the log has no times."""
        return None if self.watermark is None else (now or datetime.now(UTC)).timestamp() - self.watermark / 1000


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: verified, mapped, and held whatever happens to its directory afterwards."""

    path: Path
    manifest: BundleManifest
    encoders: Encoders
    ranker: Ranker
    rows: RowStore
    item_table: Features
    """The catalog, and behind it what ready-made histories know of their items."""
    user_table: Features
    histories: dict[str, torch.Tensor]
    """`offsets` [users + 1] into `item`, `events` and, unless ready-made, `times` (milliseconds), oldest first."""
    seen: dict[str, torch.Tensor]
    """`offsets` [users + 1] into `item`, the rows of all items that a user has events with."""
    item_ids: IdMap
    user_ids: IdMap

    @classmethod
    def open(cls, path: Path, *, hashes: bool = True) -> Bundle:
        """Map everything, and verify every hash, that rows were made by these weights, and that ids find their rows.

        Only who wrote the files and recorded their hashes just now may leave out to hash them once more.
        """
        try:
            return cls._open(path, hashes=hashes)
        except LimerankError:
            raise
        except Exception as broken:  # hashes tell damage from what was written; somebody may have written nonsense
            reason = " ".join(f"{type(broken).__name__}: {broken}".split())[:200]
            raise BundleError(f"{path}: does not fit together ({reason}); {FIX}") from broken

    @classmethod
    def _open(cls, path: Path, *, hashes: bool) -> Bundle:
        manifest = read_manifest(path)
        if not manifest.lists_a_bundle:
            raise BundleError(f"{path / MANIFEST}: key 'files' does not list the files of a bundle; {FIX}")
        files.check_files(path, manifest.files, BundleError, FIX, hashes=hashes)
        encoders = validate(
            Encoders, files.read_json(path / ENCODERS, BundleError, FIX), str(path / ENCODERS), BundleError
        )
        where = str(path / MANIFEST)
        ranker = build_ranker(finished_model(manifest.model), encoders.space(), len(manifest.tasks), where, BundleError)
        try:
            ranker.load_state_dict(load_tensors(path / WEIGHTS))
        except RuntimeError as unfit:
            reason = " ".join(str(unfit).split())[:200]
            raise BundleError(f"{path / WEIGHTS}: weights do not fit model '{ranker.name}' ({reason}); {FIX}") from None
        bundle = cls(
            path=path,
            manifest=manifest,
            encoders=encoders,
            ranker=ranker.eval(),
            rows=row_store(path / ROWS, manifest),
            item_table=features_of(load_tensors(path / ITEMS)),
            user_table=features_of(load_tensors(path / USERS)),
            histories=load_tensors(path / HISTORIES),
            seen=load_tensors(path / SEEN),
            item_ids=load_id_map(path / ITEM_IDS),
            user_ids=load_id_map(path / USER_IDS),
        )
        bundle._check_rows()
        bundle._check_histories()
        bundle._check_counts()
        return bundle

    def _check_rows(self) -> None:
        """The rows carry the fingerprint of these weights and have the shape this ranker reads."""
        path = self.path / ROWS
        expected = row_fingerprint(self.ranker, self.item_table.first(self.manifest.items), self.manifest.format)
        with safe_open(path, framework="pt") as handle:
            stamped = (handle.metadata() or {}).get("fingerprint")
        if not stamped == self.manifest.row_fingerprint == expected:
            raise BundleError(
                f"{path}: rows were made by other weights (fingerprint {str(stamped)[:12]}, "
                f"weights have {expected[:12]}); {FIX}"
            )
        with torch.inference_mode():
            sample = self.ranker.encode_items(self.item_table.take(torch.tensor([0])))
        for name, table, wanted in (
            ("rows", self.rows.rows, sample.rows),
            ("head_part", self.rows.head_part, sample.head_part),
        ):
            shape = (self.manifest.items, wanted.shape[1])
            if table.shape != shape:
                raise BundleError(f"{path}: '{name}' is {tuple(table.shape)}, should be {shape}; {FIX}")

    def _check_histories(self) -> None:
        """The columns of histories and of seen items are there, have one row per event or item, name known items."""
        for path, columns, needed in (
            (self.path / HISTORIES, self.histories, {"offsets", "item", "events"}),
            (self.path / SEEN, self.seen, {"offsets", "item"}),
        ):
            if set(columns) - {"times"} != needed:
                raise BundleError(f"{path}: holds {sorted(columns)}, should hold {sorted(needed)}; {FIX}")
            offsets = columns["offsets"]
            if not len(offsets) or offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
                raise BundleError(f"{path}: offsets do not ascend from 0; {FIX}")
            rows = int(offsets[-1])
            for name in sorted(set(columns) - {"offsets"}):
                if len(columns[name]) != rows:
                    raise BundleError(f"{path}: '{name}' has {len(columns[name])} rows, should be {rows}; {FIX}")
            item = columns["item"]
            if rows and not 0 <= int(item.min()) <= int(item.max()) < len(self.item_table):
                raise BundleError(f"{path}: names items that are not there; {FIX}")

    def _check_counts(self) -> None:
        """Ids, features and histories are there for every item and user the manifest counts."""
        for name, count, wanted in (
            (ITEM_IDS, len(self.item_ids), self.manifest.items),
            (ITEMS, len(self.item_table), self.manifest.items + self.manifest.history_items),
            (USER_IDS, len(self.user_ids), self.manifest.users),
            (USERS, len(self.user_table), self.manifest.users),
            (HISTORIES, len(self.histories["offsets"]) - 1, self.manifest.users),
            (SEEN, len(self.seen["offsets"]) - 1, self.manifest.users),
        ):
            if count != wanted:
                raise BundleError(f"{self.path / name}: has {count} rows, {MANIFEST} says {wanted}; {FIX}")


def read_manifest(path: Path) -> BundleManifest:
    """A bundle's manifest, checked for format but not against its files."""
    if not path.is_dir():
        raise BundleError(f"{path}: no such bundle; see `limerank bundle list`")
    values = files.read_json(path / MANIFEST, BundleError, FIX)
    found = values.get("format") if isinstance(values, dict) else None
    if found in REFUSED:
        raise BundleError(
            f"{path / MANIFEST}: format '{found}' was made by an older limerank and may have lost ids; export the run "
            "again: limerank export RUN --store STORE"
        )
    if found not in (FORMAT, *NAMES_BEFORE):
        raise BundleError(f"{path / MANIFEST}: key 'format' is not '{FORMAT}'; {FIX}")
    return validate(BundleManifest, values, str(path / MANIFEST), BundleError)


def row_fingerprint(ranker: Ranker, item_table: Features, bundle_format: str = FORMAT) -> str:
    """A hash of exactly what item rows are computed from: the item-side weights and the encoded items."""
    options = ranker.options.model_dump_json(exclude={*NEWER_OF_ALL, *NEWER_OPTIONS.get(ranker.name, ())})
    for name, before in NAMES_BEFORE.get(bundle_format, {}).items():
        options = options.replace(f'"{name}":', f'"{before}":')
    parts: list[str | memoryview] = [ranker.name, options]
    tensors = dict(ranker.item_side_parameters()) | {f"items.{n}": t for n, t in tensors_of(item_table).items()}
    for name in sorted(tensors):
        parts += [name, str(tuple(tensors[name].shape)), bytes_of(tensors[name])]
    return files.digest_of(*parts)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, as they are in memory."""
    return tensor.detach().contiguous().numpy().reshape(-1).view(np.uint8).data


def tensors_of(features: Features) -> dict[str, torch.Tensor]:
    """Features as named tensors, for a file."""
    named = {"indices": features.indices}
    for number, jagged in enumerate(features.lists):
        named[f"list{number}.values"], named[f"list{number}.offsets"] = jagged.values, jagged.offsets
    return named | {f"vector{number}": matrix for number, matrix in enumerate(features.vectors)}


def features_of(tensors: dict[str, torch.Tensor]) -> Features:
    """The inverse of `tensors_of`."""
    lists = sum(name.endswith(".values") for name in tensors)
    return Features(
        tensors["indices"],
        tuple(Jagged(tensors[f"list{i}.values"], tensors[f"list{i}.offsets"]) for i in range(lists)),
        tuple(tensors[f"vector{i}"] for i in range(sum(name.startswith("vector") for name in tensors))),
    )


def row_store(path: Path, manifest: BundleManifest) -> RowStore:
    """The rows of a file, which must be of the type the manifest names."""
    row_type, before = manifest.row_type, NAMES_BEFORE.get(manifest.format, {})
    names = {before.get(name, name): name for name in ("rows", "head_part", *(["scale"] if row_type == "u8" else []))}
    tensors = load_tensors(path)
    if set(tensors) != set(names):
        raise BundleError(f"{path}: holds {sorted(tensors)}, should be {sorted(names)} for {row_type} rows; {FIX}")
    if tensors["rows"].dtype != ROW_TYPES.get(row_type):
        raise BundleError(f"{path}: 'rows' are {tensors['rows'].dtype}, {MANIFEST} says {row_type}; {FIX}")
    try:
        return RowStore(**{names[name]: tensor for name, tensor in tensors.items()})
    except ArgumentError as unfit:
        raise BundleError(f"{path}: {unfit}; {FIX}") from None


def load_id_map(path: Path) -> IdMap:
    """The ids of a file, each of which finds its own row."""
    try:
        ids = IdMap(load_tensors(path))
        ids.check()
    except DataError as broken:
        raise BundleError(f"{path}: {broken}; {FIX}") from None
    return ids


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, mapped."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as broken:
        raise BundleError(f"{path}: cannot be read ({broken}); {FIX}") from None
