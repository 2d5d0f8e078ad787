"""Tensor files that are written in blocks hold the bytes that safetensors writes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from limerank.serve.bundles.tensor_file import CODES, Layout, TensorFile

shapes = st.tuples(st.integers(0, 30)) | st.tuples(st.integers(0, 30), st.integers(0, 5))
arrays = st.builds(
    lambda shape, dtype, seed: np.random.default_rng(seed).integers(0, 200, shape).astype(dtype),
    shapes,
    st.sampled_from(sorted(CODES)),
    st.integers(0, 9),
)


def layouts(tensors: dict[str, NDArray[Any]]) -> dict[str, Layout]:
    return {name: Layout(array.dtype, array.shape) for name, array in tensors.items()}


@given(
    tensors=st.dictionaries(st.sampled_from(["rows", "scale", "list0.values", "a"]), arrays, min_size=1),
    metadata=st.none() | st.just({"fingerprint": 'with "quotes"'}),
    block=st.integers(1, 40),
)
def test_the_bytes_are_those_of_safetensors(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: dict[str, NDArray[Any]],
    metadata: dict[str, str] | None,
    block: int,
) -> None:
    """Whatever is written in which order."""
    folder = tmp_path_factory.mktemp("tensors")
    with TensorFile.opened(folder / "blocks", layouts(tensors), metadata) as file:
        for name, array in tensors.items():
            for first in reversed(range(0, len(array), block)):
                file.write(name, first, array[first : first + block])
    save_file(tensors, folder / "whole", metadata)
    assert (folder / "blocks").read_bytes() == (folder / "whole").read_bytes()


def test_a_file_that_is_there_is_gone_on_with(tmp_path: Path) -> None:
    wanted = {"rows": np.arange(12.0, dtype=np.float32).reshape(6, 2), "scale": np.arange(6.0, dtype=np.float32)}
    path = tmp_path / "rows"
    with TensorFile.opened(path, layouts(wanted)) as file:
        file.write("rows", 0, wanted["rows"][:4])
    path.write_bytes(path.read_bytes() + b"too long")
    with TensorFile.opened(path, layouts(wanted)) as file:
        assert file.read("rows", 0, 4) == wanted["rows"][:4].tobytes()
        file.write("rows", 4, wanted["rows"][4:])
        file.write("scale", 0, wanted["scale"])
    found = load_file(path)
    assert all((found[name] == array).all() for name, array in wanted.items())


@pytest.mark.parametrize("rows", [0, 7, 1000])
def test_the_last_tensor_may_end_early(tmp_path: Path, rows: int) -> None:
    """With a header that is shorter then, and holds blanks."""
    numbers = np.arange(1000, dtype=np.int32)
    path = tmp_path / "seen"
    with TensorFile.opened(path, {"item": Layout.of(np.int32, 1000), "offsets": Layout.of(np.int64, 2)}) as file:
        for first in range(0, rows, 300):
            file.append("item", numbers[first : min(rows, first + 300)])
        file.write("offsets", 0, np.array([0, rows]))
        file.end_at(rows)
    found = load_file(path)
    np.testing.assert_array_equal(found["item"], numbers[:rows])
    assert found["offsets"].tolist() == [0, rows]
    assert path.stat().st_size < 300 + 4 * rows


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with TensorFile.opened(tmp_path / "file", {"rows": Layout.of(np.float16, 4, 2)}) as file:
        for first, rows in (
            (0, np.zeros((1, 2))),
            (3, np.zeros((2, 2), np.float16)),
            (0, np.zeros((1, 3), np.float16)),
        ):
            with pytest.raises(ValueError, match="does not fit"):
                file.write("rows", first, rows)
