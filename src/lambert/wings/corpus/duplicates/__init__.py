"""Exact and near duplicates among documents, and lines that occur in several of them."""
