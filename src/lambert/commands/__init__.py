"""Parses command lines, and says what is wrong with them."""
