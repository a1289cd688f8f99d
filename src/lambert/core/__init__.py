"""Definitions that all other packages share: the batch, the shard format, keyed randomness, settings and errors."""
