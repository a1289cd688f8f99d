"""Reads, builds, tries and saves tokenizers, and encodes documents with them."""
