"""From PyTorch modules to programs of the tensor stage."""
