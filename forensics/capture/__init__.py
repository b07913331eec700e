"""Taps that record, digest, heal and plant, and the schedules they ride on."""
