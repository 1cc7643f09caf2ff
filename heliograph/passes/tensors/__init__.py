"""Passes on tensors: what a model says, brought to few maps and activations."""
