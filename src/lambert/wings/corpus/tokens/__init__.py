"""Tokenizers, and documents as token ids in shards."""
