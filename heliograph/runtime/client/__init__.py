"""The client: secret key, encryption, decryption, key file."""
