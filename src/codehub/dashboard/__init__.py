"""The page that makes the machine understandable: plain ES modules in `static/`, served by whoever is given them.

It knows the rest of CodeHub only through the public API and its events; the words for states come from the domain.
"""
