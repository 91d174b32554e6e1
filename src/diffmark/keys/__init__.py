"""Operator keys: rings of them, where they come from, and what a latent codec does with one.

ring   `KeyRing`: the key that writes and the older ones that are read; files, environment, commands
bits   a keyed permutation and mask of a secret's bits, for codecs whose networks have no key of their own
"""
