"""The pixel layer: a keyed spread-spectrum mark for any image, read without a model.

keys        operator keys, and the numbers derived from them
spectrum    whitening, bands of the cosine transform, scores of bits
tones       the constellation that shows how a picture was turned, scaled and moved
layout      bands and tones of one key; margins and evidence
visibility  a fast estimate of SSIMULACRA2
writer      fits a mark to its picture
search      finds the view that a picture is to be read in
reader      plain read, then the search
codec       `PixelCodec`: all of it behind one key
"""
