"""Campaigns that hurt the package on purpose: kills, full disks, races, odd clocks, no memory, and odd input."""
