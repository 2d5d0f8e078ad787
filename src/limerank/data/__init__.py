"""The data room: raw tables -> dataset -> request batches."""
