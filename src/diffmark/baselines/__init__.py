"""Watermarking methods behind one protocol."""
