"""How updates are run: the one loop, distribution, precision, checkpoints and the log.

Nothing here knows of corpora, models, optimizers or tasks: it works with any net that maps a batch to summed losses.
"""
