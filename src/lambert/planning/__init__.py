"""Cost formulas as pure functions: operations and memory."""
