"""What is seen, what follows from it, and what is told of it: pure functions, without any I/O."""
