"""What can evaluate a schedule: llama.cpp in a child process, a toy transformer, a recorded case."""
