"""Tagging: a label for each word, from words with tags or from spans of characters."""
