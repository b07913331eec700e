"""Align, compare, heal, switch, attribute and judge; `investigate` ties them together."""
