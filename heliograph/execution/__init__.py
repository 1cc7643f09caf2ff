"""The protocol of backends, the loop that executes programs on them, and the simulator for predictions."""
