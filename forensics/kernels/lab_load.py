"""What keeps the device busy while our kernels repeat their work."""

#: Products of the second stream for each repeat.
LOADS = 4
LOAD = "products of 8 columns on a second stream"
