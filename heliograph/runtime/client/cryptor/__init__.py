"""The client's cryptography: the secret key, encryption and decryption, and the server's evaluation keys."""
