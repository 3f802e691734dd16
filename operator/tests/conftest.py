"""Puts this folder on the import path, so that tests of every part find what they share."""
