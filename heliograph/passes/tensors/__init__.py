"""Passes on tensors: from a model's ops to few maps and activations."""
