"""The HTTP service: detection, identification, keys and the audit log, behind tokens with roles."""
