"""The rows of the table: rankers and variants, by name or by group, each with what it is trained with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limerank.config import RunConfig
from limerank.errors import UsageError, did_you_mean
from limerank.files import digest_of
from limerank.models import RANKERS, check_model
from limerank.study.configuration import StudyConfig
from limerank.study.trainings import Variant
from limerank.typed import validate

TABLE_B = ("ttsn", "din", "sasrec", "truncated-mha", "lrea", "lime-mha", "mha", "lime-xor", "hstu")
"""The rows of the paper's table (b), in its order."""
PEERS = ("linear-attention", "performer", "linformer", "lightning", "mamba")
"""What else is linear in the history: the comparison whose section the paper leaves empty."""
LIME = ("lime-mha", "lime-xor")
"""Of table (b), what the paper proposes."""
GROUPS: Mapping[str, tuple[str, ...]] = {"paper": TABLE_B, "peers": PEERS, "all": tuple(RANKERS)}
LONGEST_NAME = 80


@dataclass(frozen=True)
class StudyRow:
    """One row: a ranker, or a variant of one, and the configuration that a search starts from."""

    name: str
    ranker: str
    config: RunConfig
    fixed: frozenset[str] = frozenset()
    """Dotted keys that make it a variant; a search leaves them alone."""

    def applied(self, parameters: Mapping[str, Any]) -> RunConfig:
        """Its configuration with some dotted keys changed."""
        values = self.config.model_dump()
        for dotted, value in parameters.items():
            section, _, key = dotted.rpartition(".")
            values[section][key] = value
        where = f"{self.name} with {', '.join(f'{key}={value}' for key, value in parameters.items())}"
        config = validate(RunConfig, values, where)
        check_model(config.model, where)
        return config

    def variant(self, parameters: Mapping[str, Any]) -> Variant:
        """What is trained; its name, and so its folder, says what was changed."""
        config = self.applied(parameters)
        return Variant(self._named(parameters), config.model, config.train)

    def _named(self, parameters: Mapping[str, Any]) -> str:
        changed = "".join(f"-{key.rpartition('.')[2]}-{_word(value)}" for key, value in parameters.items())
        name = f"{self.name}{changed}"
        return name if len(name) <= LONGEST_NAME else f"{self.name}-{digest_of(changed)[:12]}"


def study_rows(models: str | None, config: StudyConfig, dataset: Path) -> list[StudyRow]:
    """The rows that `--models` names; without it the paper's, their linear-attention peers, and all variants."""
    if models is None:
        names = [*TABLE_B, *PEERS, *config.variants]
    else:
        names = []
        for word in filter(None, (part.strip() for part in models.split(","))):
            names += (*GROUPS[word], *(config.variants if word == "all" else ())) if word in GROUPS else (word,)
    names = list(dict.fromkeys(names))
    if not names:
        raise UsageError(f"--models {models}: names no ranker; for example ttsn,lime-mha,mha")
    known = (*RANKERS, *config.variants, *GROUPS)
    for name in names:
        if name not in known:
            raise UsageError(f"--models {models}: no ranker, variant or group '{name}'{did_you_mean(name, known)}")
    return [
        StudyRow(name, config.ranker_of(name), config.run(dataset, name, seed=1), config.fixed_keys(name))
        for name in names
    ]


def names_of(rows: Sequence[StudyRow]) -> list[str]:
    """In their order."""
    return [row.name for row in rows]


def _word(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^A-Za-z0-9.]+", "_", text)
