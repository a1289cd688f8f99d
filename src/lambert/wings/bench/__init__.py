"""The speed of each kind of work, beside peers (`lambert bench`)."""
