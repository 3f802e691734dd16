"""What is told of a run to those who look at it from outside, while it runs or after."""
