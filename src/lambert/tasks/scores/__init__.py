"""Scores of predictions: formulas, comparison, calibration."""
