"""Where other people's servers and tools meet the marks: middleware, a gateway, and what the recipes share."""
