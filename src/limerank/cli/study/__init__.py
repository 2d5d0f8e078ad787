"""`limerank study`: the paper's experiments, one file per command."""

from __future__ import annotations

import typer

from limerank.cli.study import ablation, accuracy, complexity, latency, logs, scaling, spectrum

app = typer.Typer(no_args_is_help=True, help="The paper's experiments on your machine.")
accuracy.register(app)
latency.register(app)
spectrum.register(app)
scaling.register(app)
ablation.register(app)
complexity.register(app)
logs.register(app)
