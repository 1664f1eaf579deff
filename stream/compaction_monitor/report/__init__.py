"""What `scan` tells: a document, and a page of it."""
