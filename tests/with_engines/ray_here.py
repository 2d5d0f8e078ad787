"""A real Ray for tests: a folder of its own, some logical CPUs, a small object store, no dashboard."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from engines import need

from limerank.serve.bundles.on_ray.starting import ray_folder, start_ray
from limerank.serve.sharded.cluster import ray_module, serve_module

OBJECT_STORE = 100 * 2**20


@contextmanager
def ray_here(cpus: int = 4) -> Iterator[str]:
    """Ray, as long as a `with` block lasts, and its address."""
    need("ray", "ray")
    ray = ray_module()
    with ray_folder() as folder:
        start_ray(folder, cpus, object_store_memory=OBJECT_STORE, logging_level=logging.ERROR)
        try:
            yield str(ray.get_runtime_context().gcs_address)
        finally:
            with suppress(Exception):  # whatever of it is still there ends with Ray
                serve_module().shutdown()
            ray.shutdown()
