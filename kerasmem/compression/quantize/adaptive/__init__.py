"""Adaptive rounding: each weight up or down, as suits what its layer makes of data."""
