"""What was measured on a machine, as a file: lines of core-seconds and bytes, and the machine they are true of."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from limerank import files
from limerank.errors import DataError, UsageError
from limerank.planning.lines import Line, Plane
from limerank.threads import available_cores
from limerank.typed import validate

FORMAT: Literal["limerank-rates-1"] = "limerank-rates-1"
FILE = Path("limerank-rates.json")
"""Where rates are looked for, and left, unless somebody says otherwise."""
AGAIN = "measure again with `limerank plan --measure`"
NAMED = ("width", "links", "heads", "head")


class Machine(BaseModel):
    """What rates are true of."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    processor: str
    cores: int
    memory_bytes: int

    def differs(self, other: Machine) -> bool:
        """Whether a core of one tells nothing of a core of the other."""
        return self.processor != other.processor

    def __str__(self) -> str:
        return f"{self.processor}, {self.cores} cores, {self.memory_bytes / 1e9:.0f} GB"


def this_machine() -> Machine:
    """The machine that this process runs on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(processor=_processor(), cores=available_cores(), memory_bytes=memory)


class RankerRates(BaseModel):
    """One ranker of one size: what its parts are as large as, and what its stages take."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: dict[str, Any]
    """The model section, with every option."""
    row_numbers: int
    """Of the interaction, per item: H * l for LIME."""
    hidden: int
    """Of the head's first layer, which is an item's head part."""
    dense_parameters: int
    """All but embedding tables."""
    embedding_width: int
    training: Plane
    """Core-seconds of a step, by events of all its histories and by its candidates."""
    export: Line
    """Core-seconds of an export, by items."""
    user: Line
    """Core-seconds of the user stage, by events of the history, where what is read of them was kept."""
    user_computed: Line
    """The same where it is computed."""
    interaction: Line
    """Core-seconds of everything behind the user stage, by candidates: lookup, scores, the best of them."""
    scan: Line
    """The same for a whole catalog, by items."""

    @property
    def name(self) -> str:
        """The ranker and the sizes that matter, for people."""
        sizes = [f"{key} {self.model[key]}" for key in NAMED if key in self.model]
        return ", ".join([str(self.model["name"]), *sizes])


class Rates(BaseModel):
    """All that was measured on one machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["limerank-rates-1"] = FORMAT
    limerank: str
    torch: str
    measured_at: str
    """ISO 8601, UTC."""
    quick: bool = False
    """Whether sizes were so small that the rates only show that measuring works."""
    machine: Machine
    load_average: list[float]
    """Before and after: on a machine that others use, rates are worse than they could be."""
    prepare: Line
    """Core-seconds, by events of the log."""
    store_add: Line
    """Core-seconds of one durable transaction of the history store, by the events it adds."""
    store_read: Line
    """Core-seconds to read a user who is not remembered, by stored events."""
    store_bytes: Line
    """Bytes of the store's file, by events."""
    rankers: list[RankerRates]

    def of(self, model: Mapping[str, Any], where: str) -> RankerRates:
        """The rates of a ranker; one that was not measured is an error that says how to."""
        for one in self.rankers:
            if one.model == dict(model):
                return one
        known = "; ".join(one.name for one in self.rankers)
        sizes = ", ".join(f"{key} {model[key]}" for key in NAMED if key in model)
        raise UsageError(
            f"{where}: holds no rates of {model.get('name')} with {sizes} and these other options; it has {known}; "
            "add --measure to measure this one as well"
        )

    def beside(self, earlier: Rates) -> Rates:
        """The same with the rankers of earlier rates that were not measured anew."""
        again = [one.model for one in self.rankers]
        return self.model_copy(
            update={"rankers": [*(one for one in earlier.rankers if one.model not in again), *self.rankers]}
        )


def read_rates(path: Path) -> Rates:
    """Rates from a file; a file of something else is an error that names it."""
    values = files.read_json(path, DataError, AGAIN)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise DataError(f"{path}: key 'format' is not '{FORMAT}'; {AGAIN}")
    return validate(Rates, values, str(path), DataError)


def write_rates(path: Path, rates: Rates) -> None:
    """Leave rates as a file."""
    files.write_json(path, rates.model_dump(mode="json"))


def _processor() -> str:
    """The processor's name, which many systems only keep in a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
