"""Manifests of a topology's children, each made by a pure function of what it is made for."""
