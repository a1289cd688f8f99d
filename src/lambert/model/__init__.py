"""Batches to states to losses: attention, blocks, encoder, heads, and weights on disk."""
