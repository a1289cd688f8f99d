"""The text that Wikipedia's templates show inside sentences: tables, and the functions that their rows name."""
