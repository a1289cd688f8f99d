"""What the templates of Wikipedia show inside sentences: tables, and the functions that their rows name."""
