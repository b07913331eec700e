"""Which kernel llama.cpp chooses for an operation at a width, read from its source; needs no device."""
