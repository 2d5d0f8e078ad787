"""An index of a bundle's rows for maximum inner product search: FAISS, inverted lists of 8-bit vectors.

    STORE/indexes/<bundle id>/index.faiss    the vectors [row | head part] in lists around k-means centers
    STORE/indexes/<bundle id>/index.json     what it was made from, how many lists a search reads, its measured recall

It belongs to the rows of one bundle and never changes. It is verified when it is opened, by its hash and by the
fingerprint of the rows; what is damaged or belongs to other rows is made anew, for everything in it follows from the
bundle. How many lists a search reads is chosen when it is made: the fewest with which the recall, measured against the
exhaustive scan, reaches what was asked for, or nearly what all lists together find.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from limerank import files
from limerank.errors import BundleError, UsageError, require_extra
from limerank.models import UserState
from limerank.serve.bundles.bundle import Bundle
from limerank.serve.bundles.store import INDEXES
from limerank.serve.catalog import FIRST_ITEM_ROW
from limerank.serve.retrieval.linear import LinearHead, item_vectors
from limerank.serve.retrieval.recall import USERS, ExactAnswers, K, Recall, usual_candidates
from limerank.serve.retrieval.retriever import Rows
from limerank.typed import validate

FORMAT, INDEX, MANIFEST = "limerank-index-1", "index.faiss", "index.json"
FIX = "delete the folder, it is made anew"
RECALL, LOSS = 0.99, 0.002
"""What an index should find; where the linear head itself finds less, what its lists may lose besides."""
POINTS_PER_LIST = 39
"""k-means with fewer points per center is warned of by FAISS, and with reason."""
MOST_LISTS, MOST_TRAINING_POINTS = 65536, 262144
BLOCK, SEED = 65536, 0
_building = threading.Lock()


class IndexManifest(BaseModel):
    """What an index was made from, how it is searched, and what that finds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str
    bundle: str
    row_fingerprint: str
    row_type: str
    items: int
    width: int
    lists: int
    probes: int
    """Lists that a search reads."""
    recall: Recall
    """With so many probes, against the exhaustive scan."""
    linear_recall: Recall
    """With all lists: what the linear head itself loses, and 8 bits per number."""
    faiss: str
    files: list[files.FileRecord]


class RowIndex:
    """An opened index: finds items with a large inner product with a request's linear head."""

    def __init__(self, bundle: Bundle, index: Any, probes: int) -> None:
        self.probes = probes
        self._index = index  # a faiss.IndexIVF
        self._head = LinearHead(bundle.ranker, bundle.rows.behind(FIRST_ITEM_ROW))

    def retrieve(self, user: UserState, count: int, task: int = 0) -> Rows:
        """Rows of the `count` items with the largest inner products, largest first; fewer if its lists hold fewer."""
        import faiss

        query = self._head.query(user, task)
        wanted = min(count, self._index.ntotal)
        if wanted < 1:
            return np.zeros(0, dtype=np.int64)
        with _threads(1):
            options = faiss.SearchParametersIVF()
            options.nprobe = self.probes
            _, found = self._index.search(query.numpy()[None], wanted, params=options)
        positions: Rows = found[0][found[0] >= 0].astype(np.int64)
        return positions + FIRST_ITEM_ROW


def index_path(bundle: Bundle) -> Path:
    """Where the index of a bundle is kept: beside the bundles of its store."""
    return bundle.path.parent.parent / INDEXES / bundle.manifest.id


def has_index(bundle: Bundle) -> bool:
    """Whether an index was made of a bundle, damaged or not, and FAISS is there to read it."""
    return (index_path(bundle) / MANIFEST).is_file() and importlib.util.find_spec("faiss") is not None


def ready_index(bundle: Bundle) -> RowIndex:
    """The index of a bundle, made first if there is none or if it is damaged."""
    require_extra("faiss", "faiss")
    with _building:
        try:
            return open_index(bundle)
        except FileNotFoundError:
            pass
        except BundleError as damaged:
            logging.getLogger("limerank").warning("%s; making the index of %s anew", damaged, bundle.manifest.id)
        _build(bundle, RECALL, K, usual_candidates(bundle.manifest.items), USERS, 1)
        return open_index(bundle)


def build_index(
    bundle: Bundle,
    *,
    recall: float = RECALL,
    k: int = K,
    candidates: int | None = None,
    users: int = USERS,
    threads: int = 1,
) -> IndexManifest:
    """Make the index of a bundle, whether there is one or not; searches read as few lists as reach `recall`.

    `recall` is the mean over `users` of the fraction of the exact top `k` among the `candidates` found (by default as
    many as `recommend` asks for).
    """
    require_extra("faiss", "faiss")
    candidates = usual_candidates(bundle.manifest.items) if candidates is None else candidates
    if not 0 < recall <= 1 or min(k, candidates, users, threads) < 1 or candidates < k:
        raise UsageError(
            f"recall must be above 0 and at most 1, k, users and threads at least 1 and candidates at least k, but are "
            f"{recall}, {k}, {users}, {threads} and {candidates}"
        )
    with _building:
        return _build(bundle, recall, k, candidates, users, threads)


def open_index(bundle: Bundle) -> RowIndex:
    """The index of a bundle, verified; FileNotFoundError if there is none, BundleError if it is not to be trusted."""
    import faiss

    path, manifest = index_path(bundle), read_index_manifest(bundle)
    files.check_files(path, manifest.files, BundleError, FIX, hashes=True)
    index = faiss.read_index(str(path / INDEX))
    if (index.ntotal, index.d) != (manifest.items, manifest.width):
        raise BundleError(f"{path / INDEX}: holds {index.ntotal} vectors of {index.d} numbers, {MANIFEST} says other")
    return RowIndex(bundle, index, manifest.probes)


def read_index_manifest(bundle: Bundle) -> IndexManifest:
    """What is known of a bundle's index; FileNotFoundError without one, BundleError if it is not of these rows."""
    path = index_path(bundle) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(path)
    manifest = validate(IndexManifest, files.read_json(path, BundleError, FIX), str(path), BundleError)
    own = bundle.manifest
    expected = (FORMAT, own.row_fingerprint, own.row_type, len(bundle.rows) - FIRST_ITEM_ROW, [INDEX])
    listed = [record.path for record in manifest.files]
    if (manifest.format, manifest.row_fingerprint, manifest.row_type, manifest.items, listed) != expected:
        raise BundleError(f"{path}: was not made from the rows of bundle {own.id}; {FIX}")
    return manifest


def _build(bundle: Bundle, recall: float, k: int, candidates: int, users: int, threads: int) -> IndexManifest:
    import faiss

    with _threads(threads):
        index = _filled(bundle)
    answers = ExactAnswers.of(bundle, k=k, users=users)
    opened = RowIndex(bundle, index, index.nlist)
    linear = reached = answers.recall(opened, candidates)
    for probes in _doubled(index.nlist):
        opened.probes = probes
        reached = answers.recall(opened, candidates)
        if reached.mean >= min(recall, linear.mean - LOSS):
            break
    final = index_path(bundle)
    if final.exists() and not (final / MANIFEST).is_file():
        shutil.rmtree(final)  # what is left of one that lost its manifest
    with files.full_disk_named(final), files.staged_directory(final, marker=MANIFEST, overwrite=True) as staging:
        faiss.write_index(index, str(staging / INDEX))
        own = bundle.manifest
        manifest = IndexManifest(
            format=FORMAT,
            bundle=own.id,
            row_fingerprint=own.row_fingerprint,
            row_type=own.row_type,
            items=index.ntotal,
            width=index.d,
            lists=index.nlist,
            probes=opened.probes,
            recall=reached,
            linear_recall=linear,
            faiss=faiss.__version__,
            files=files.record_files(staging),
        )
        files.write_json(staging / MANIFEST, manifest.model_dump(mode="json"))
    return manifest


def _doubled(most: int) -> Iterator[int]:
    """1, 2, 4, ... and at last `most`."""
    probes = 1
    while probes < most:
        yield probes
        probes *= 2
    yield most


def _filled(bundle: Bundle) -> Any:
    """The trained index with all items of a bundle, read block by block."""
    import faiss

    catalog = bundle.rows.behind(FIRST_ITEM_ROW)
    if not len(catalog):
        raise UsageError(f"bundle {bundle.manifest.id}: has no items to make an index of")
    lists = min(max(math.isqrt(len(catalog)), 1), max(len(catalog) // POINTS_PER_LIST, 1), MOST_LISTS)
    width = catalog.rows.shape[1] + catalog.head_part.shape[1]
    index = faiss.index_factory(width, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    points = min(len(catalog), MOST_TRAINING_POINTS, max(256 * lists, 4096))
    chosen = np.sort(np.random.default_rng(SEED).permutation(len(catalog))[:points])
    index.train(item_vectors(*catalog.widened(torch.from_numpy(chosen))).numpy())
    for start, stop, rows, head_part in catalog.blocks(None, BLOCK):
        index.add(item_vectors(rows, head_part)[: stop - start].numpy())
    return index


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """FAISS computes on so many threads in here; its own number, and torch's if they share one, comes back."""
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
