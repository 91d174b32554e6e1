"""Attacks on marks, a file an experiment; `security_pixel.py` and `security_generation.py` run them.

measuring   found, named, accuracy with exact intervals; the damage; the strength chosen on other pictures
testbed     pictures, keys and marks of a run on the pixel layer; generation_testbed, of one on the generation layer
spectra     what an attacker without the key computes: coefficients, and residuals from them
with_key    removal by who has the key: the complement, overwriting, gradients on the margins
seen        removal and forgery by who has seen 1 ... 1,000 marked pictures: means, principal directions, fits
tones       the tones located in pictures, notched, and the picture rotated
oracle      removal by who may ask a detector a thousand times
forgery     copies of a mark, with and without the codec
collusion   accounts that mix their copies of one picture
privacy     what a stranger learns: bits, accounts and operators told apart
generation  the same questions to a codec of the generation layer
"""
