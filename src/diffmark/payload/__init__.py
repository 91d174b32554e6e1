"""What a secret says: an account and a nonce under a key, with error correction."""
