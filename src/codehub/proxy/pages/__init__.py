"""The pages that the front door shows instead of a workspace: their data, their HTML and their texts."""
