"""Detection over as many images as there are, in this process or on Ray, resumable at any moment."""
