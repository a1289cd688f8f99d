"""Turns a recipe into a run: a generator of updates, with a run folder from which it can continue."""
