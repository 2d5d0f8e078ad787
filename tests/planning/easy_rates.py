"""Rates that nobody measured, with numbers that are easy to count with, for tests of formulas."""

from __future__ import annotations

from limerank.planning.lines import Line, Plane
from limerank.planning.rates import Machine, RankerRates, Rates
from limerank.planning.workload import Machines, Workload


def line(fixed: float, slope: float, largest: int = 1000) -> Line:
    return Line(fixed=fixed, slope=slope, sizes=[1, largest], values=[fixed + slope, fixed + slope * largest])


RANKER = RankerRates(
    model={"name": "lime-mha", "width": 32, "links": 32, "heads": 4, "head": [64]},
    row_numbers=128,
    hidden=64,
    dense_parameters=25_000,
    embedding_width=16,
    training=Plane(fixed=0.004, first=1e-5, second=2e-6, sizes=[(1, 1), (2, 1), (1, 2)], values=[1.0, 1.0, 1.0]),
    export=line(0.5, 1e-5),
    user=line(1e-3, 2e-6),
    user_computed=line(2e-3, 8e-6),
    interaction=line(5e-4, 1e-6),
    scan=line(5e-4, 1e-7),
)
RATES = Rates(
    limerank="0",
    torch="0",
    measured_at="2026-01-01T00:00:00+00:00",
    machine=Machine(processor="of a test", cores=4, memory_bytes=16_000_000_000),
    load_average=[0.0] * 6,
    prepare=line(0.1, 1e-6),
    store_add=line(2e-3, 1e-4),
    store_read=line(1e-3, 5e-6),
    store_bytes=line(100_000, 160),
    rankers=[RANKER],
)
MACHINES = Machines(cores=16, memory_gb=64)
WORKLOAD = Workload(items=1e6, users=1e5, events_per_day=1e7, requests_per_second=100)
