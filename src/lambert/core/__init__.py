"""What every layer may know: the batch, the shard format, keyed randomness, configuration and errors."""
