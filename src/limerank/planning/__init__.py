"""From measured rates and a workload to machines: formulas that are shown as they are computed; nothing is timed here."""
