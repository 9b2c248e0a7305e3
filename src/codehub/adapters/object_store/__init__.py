"""Archives in an object store, a directory (`file:///dir`) or S3 (`s3://bucket`): stored, listed and read."""
