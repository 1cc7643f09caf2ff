"""The parts of a report beyond the program: held-out samples, the bill, savings."""
