"""The verbs of corpora."""
