"""What `mkdocs build` needs besides the pages: two small hooks."""
