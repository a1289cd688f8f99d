"""How one process runs updates: the loop, precision, checkpoints and the log.

This package does not depend on corpora, models, optimizers or tasks: it works with any net that maps a batch to summed
losses.
"""
