"""The choice of ring, chain, scale, digits and bootstraps."""
