"""The pages that the proxy shows instead of a workspace: their data, their HTML and their texts."""
