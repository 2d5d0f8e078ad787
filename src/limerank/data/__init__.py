"""The data room: raw tables -> encoded event log -> request batches."""
