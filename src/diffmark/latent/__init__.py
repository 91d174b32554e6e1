"""The generation layer: the paper's codec, its injection, and what it needs of autoencoders and schedulers."""
