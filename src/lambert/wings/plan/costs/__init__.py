"""Formulas of time, traffic, failures and money, as pure functions."""
