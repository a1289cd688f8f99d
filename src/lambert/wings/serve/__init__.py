"""The HTTP service: models over texts behind a queue by tokens, and a page to try them on (`lambert serve`)."""
