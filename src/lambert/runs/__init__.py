"""A run: a recipe becomes a generator of updates, in a folder that it continues from."""
