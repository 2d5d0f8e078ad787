"""From measured rates and a workload to machines: formulas, shown as they are computed; nothing is timed here."""
