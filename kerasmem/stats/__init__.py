"""Statistics: timing, differences, Pareto fronts and bisection."""
