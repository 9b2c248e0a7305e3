"""The composition root: is given the settings, names the concrete adapters and puts them together.

A module for each process and for what they share, so that none loads what only another needs: a worker of the front
door carries no web framework.
"""
