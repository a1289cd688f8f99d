"""Reads what people hold: encodings, compression, tables, JSON, Parquet and Arrow."""
