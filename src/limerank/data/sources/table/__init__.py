"""Your own log: CSV or Parquet files and the description that says what they mean."""
