"""The usual way to hold histories, as a contestant: one padded row of numbers per sample, gathered row by row.

This is how FuxiCTR's npz loader works: all columns side by side as float64, `__getitem__` per row, `default_collate`,
columns picked by a list of positions, ids turned back into integers where they are looked up. `PaddedColumns` is the
best padded layout we could think of: one int32 matrix per feature and one `index_select` each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from limerank.data.batches import RequestLoader
from limerank.schema import Role

Matrix = NDArray[np.int32]


def padded_features(loader: RequestLoader, requests: NDArray[np.int64]) -> tuple[list[Matrix], Matrix, Matrix]:
    """Per candidate: every history feature [rows, max_history] (padded in front), the other features, the labels.

    Of a multi-valued feature only the first value is kept, which flatters the padded layouts.
    """
    dataset, width = loader.dataset, loader.max_history
    batch = loader.assemble(requests)
    counts = batch.candidates.offsets.diff().numpy()
    rows, offsets = loader.history.rows(requests, width)
    lengths = np.diff(offsets)
    position = np.arange(len(rows)) - np.repeat(offsets[:-1], lengths) + np.repeat(width - lengths, lengths)
    of_request = np.repeat(np.arange(len(requests)), lengths)
    item_features = _single(loader, Role.ITEM)[rows.take(loader.history.item)]
    event_features = np.stack([rows.take(column) for column in loader.history.events], axis=1)
    histories = []
    for column in np.concatenate([item_features, event_features], axis=1).T:
        padded = np.zeros((len(requests), width), dtype=np.int32)
        padded[of_request, position] = column
        histories.append(np.repeat(padded, counts, axis=0))
    candidates = loader.candidate_rows(requests)
    user = np.repeat(_single(loader, Role.USER)[dataset.column("requests/user")[requests]], counts, axis=0)
    context = np.stack([column[candidates] for column in dataset.role_columns(Role.CONTEXT)], axis=1)
    others = [_single(loader, Role.ITEM)[dataset.column("events/item")[candidates]], user, context]
    return histories, np.concatenate(others, axis=1).astype(np.int32), batch.labels.numpy().astype(np.int32)


def _single(loader: RequestLoader, role: Role) -> NDArray[np.int64]:
    """All features of a table as one index each; a list gives its first value."""
    table = loader.dataset.item_table if role is Role.ITEM else loader.dataset.user_table
    columns = [table.indices.numpy()]
    for jagged in table.lists:
        first = torch.zeros(len(table), dtype=torch.long)
        filled = jagged.offsets.diff() > 0
        first[filled] = jagged.values[jagged.offsets[:-1][filled]]
        columns.append(first[:, None].numpy())
    return np.concatenate(columns, axis=1)


class PaddedRows(Dataset[NDArray[np.float64]]):
    """Samples as rows of one float64 matrix, labels last."""

    def __init__(self, histories: list[Matrix], others: Matrix, labels: Matrix) -> None:
        self.matrix = np.column_stack([*histories, others, labels]).astype(np.float64)
        ends = np.cumsum([history.shape[1] for history in histories])
        self.histories = [list(range(end - h.shape[1], end)) for end, h in zip(ends, histories, strict=True)]
        self.others = range(int(ends[-1]), int(ends[-1]) + others.shape[1])
        self.labels = list(range(self.matrix.shape[1] - labels.shape[1], self.matrix.shape[1]))

    def __len__(self) -> int:
        return len(self.matrix)

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        row: NDArray[np.float64] = self.matrix[index, :]
        return row

    def batches(self, rows: int) -> Iterator[list[Tensor]]:
        """Shuffled batches: histories and other features as indices, labels as floats."""
        for batch in DataLoader(self, batch_size=rows, shuffle=True):
            features = [batch[:, columns].long() for columns in self.histories]
            features += [batch[:, column].long() for column in self.others]
            yield [*features, batch[:, self.labels].float()]


class PaddedColumns:
    """Samples as one int32 matrix per feature."""

    def __init__(self, histories: list[Matrix], others: Matrix, labels: Matrix) -> None:
        self.matrices = [torch.from_numpy(matrix) for matrix in (*histories, others, labels)]

    def batches(self, rows: int) -> Iterator[list[Tensor]]:
        """Shuffled batches."""
        for chosen in torch.randperm(len(self.matrices[0])).split(rows):
            *features, labels = [matrix.index_select(0, chosen) for matrix in self.matrices]
            yield [*(feature.long() for feature in features), labels.float()]

    def bytes(self) -> int:
        """How much memory the samples take."""
        return sum(matrix.numel() * matrix.element_size() for matrix in self.matrices)
