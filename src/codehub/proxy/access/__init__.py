"""Who may reach which workspace: the decision about each request, and the caches it is made from."""
