"""Reads files of text and tables: encodings, compression, CSV, JSON, Parquet and Arrow."""
