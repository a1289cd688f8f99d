"""The page of `lambert report` about a corpus."""
