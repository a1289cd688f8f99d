"""Shards to batches: packing cuts documents into sequences, masking selects the masked tokens, and stream orders the
sequences and assigns them to micro-batches and ranks."""
