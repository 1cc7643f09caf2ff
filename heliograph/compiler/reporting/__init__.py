"""What a report says beyond the program: held-out samples, the bill, savings."""
