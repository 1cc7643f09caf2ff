"""Differentially private training of PyTorch modules: DP-SGD and DPIS, every release accounted."""
