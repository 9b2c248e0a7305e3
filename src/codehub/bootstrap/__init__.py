"""The composition root: the only package that reads settings and names concrete adapters.

A module for each process and for what they share, so that none loads what only another needs: a worker of the front
door carries no web framework.
"""
