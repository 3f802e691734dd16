"""One window after the other, decided purely: the machine, its tables and what it comes to."""
