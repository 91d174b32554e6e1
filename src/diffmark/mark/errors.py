"""What marking raises and warns of, besides `MarkWarning` of the pixel layer."""


class UnmarkableError(ValueError):
    """The pipeline, or this call of it, cannot carry the mark. Raised instead of giving an unmarked image."""
