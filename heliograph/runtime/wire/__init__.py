"""The wire form (docs/wire.md): messages, ciphertexts, keys, folders of keys."""
