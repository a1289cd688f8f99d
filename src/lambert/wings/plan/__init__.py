"""Time, memory, energy and cost of a run before it is started (`lambert plan`)."""
