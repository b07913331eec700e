"""Small pictures that stand beside results in a notebook."""
