"""The rates that `limerank plan` counts with: short measurements at small sizes, and a check at sizes they never saw."""
