"""Training of the Vista family. Nothing that generates or detects imports this package."""
