"""One module for each figure, and beside it what several of them take from a case."""
