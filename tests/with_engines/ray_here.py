"""A real Ray for tests: a folder of its own, some logical CPUs, a small object store, no dashboard."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from engines import need

from limerank.serve.sharded.cluster import ray_module, serve_module

OBJECT_STORE = 100 * 2**20


@contextmanager
def ray_here(cpus: int = 4) -> Iterator[str]:
    """Ray, as long as a `with` block lasts, and its address; sockets need a short path."""
    need("ray", "ray")
    ray, folder = ray_module(), tempfile.mkdtemp(prefix="lr-ray-")
    ray.init(
        address="local",
        num_cpus=cpus,
        object_store_memory=OBJECT_STORE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=folder,
    )
    try:
        yield str(ray.get_runtime_context().gcs_address)
    finally:
        with suppress(Exception):  # whatever of it is still there ends with Ray
            serve_module().shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
