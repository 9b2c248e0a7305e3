"""HTTP/1.1 between browsers and workspaces: parsing, forwarding, connections and their limits."""
