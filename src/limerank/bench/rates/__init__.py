"""The rates that `limerank plan` counts with: measured at small sizes, checked at sizes they never saw."""
