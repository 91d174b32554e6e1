"""Weights for measurements with DiffMark: siblings of the embedded model, trained baselines, digests of both."""
