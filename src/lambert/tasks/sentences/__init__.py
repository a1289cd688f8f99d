"""Tasks with a label, several labels, a number or a choice for each text."""
