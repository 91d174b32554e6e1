"""Training of codecs: pretraining (Algorithm 1), the dual path (Algorithm 2), and all that a run needs."""
