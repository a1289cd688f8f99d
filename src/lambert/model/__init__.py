"""Batches to states to losses: attention, blocks, encoder, heads, weights on disk, and what it all costs."""
