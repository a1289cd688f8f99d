"""Tokenizers of model folders: found, built, tried, and their special tokens by role."""
