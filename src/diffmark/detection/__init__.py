"""Reading marks: detectors, the decision on what they read, and evidence maps."""
