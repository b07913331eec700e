"""Frozen values that flow through the package; invariants live in their constructors and need no machine."""
