"""Writing marks: into running diffusers pipelines, decoded pictures and finished images."""
