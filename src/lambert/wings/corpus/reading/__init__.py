"""Readers: files of all kinds as streams of pieces of text."""
