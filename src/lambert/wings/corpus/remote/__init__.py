"""Remote inputs: URLs, servers and downloads."""
