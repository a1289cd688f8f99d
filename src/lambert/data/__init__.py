"""Shards to batches: packing (which tokens make a sequence), masking (which of them are predicted), stream (in which
order, in which micro-batches, on which rank)."""
