"""Labelled files: rows, texts, labels, and the features that are made of them."""
