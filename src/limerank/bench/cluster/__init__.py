"""How much more machines give: training, export, scoring."""
